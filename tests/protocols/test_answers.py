"""What is counted, hidden and forwarded of an answer does not depend on how the engine cut it."""

import json
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.core.usage import TOKENS_MAX, TokenUsage, UsageSource, estimate_tokens
from headrace.protocols import answers, sse
from headrace.protocols.assembling import AnswerAssembler
from tests.protocols.chunks import TEXT, choice, chunk, pieces, usage_of

raw_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

# Where a text is handed over in a chunk; each of these is output that the caller pays for.
CARRIERS = ("content", "reasoning_content", "reasoning", "refusal", "text", "arguments", "name")
PROMPT_BYTES = 40


def reading(
    *,
    choices: int = 1,
    wants_usage: bool = False,
    hides_cached: bool = False,
    hides_progress: bool = False,
) -> answers.StreamedAnswer:
    return answers.StreamedAnswer(
        choices=choices, wants_usage=wants_usage, hides_cached=hides_cached, hides_progress=hides_progress
    )


def counted(*payloads: bytes) -> TokenUsage:
    answer = reading()
    for payload in payloads:
        answer.take(payload)
    return answer.usage(prompt_bytes=PROMPT_BYTES)


# Counting


@given(parts=st.lists(st.tuples(st.sampled_from(CARRIERS), TEXT), max_size=6), seed=st.integers(0, 2**32))
def test_an_estimate_does_not_depend_on_the_cutting(parts: list[tuple[str, str]], seed: int) -> None:
    """T31, T38: text, reasoning, refusals and tool calls all count, once."""
    chance = Random(seed)
    cut = [chunk(choice(carrier, piece)) for carrier, text in parts for piece in pieces(text, chance)]
    text_bytes = sum(len(text.encode()) for _, text in parts)
    expected = TokenUsage(source=UsageSource.UNKNOWN)
    if text_bytes:
        expected = TokenUsage(
            estimate_tokens(PROMPT_BYTES), estimate_tokens(text_bytes), 0, UsageSource.ESTIMATED
        )
    assert counted(*cut) == expected


COUNT = st.integers(-5, 50)
REPORT = st.one_of(st.none(), st.tuples(COUNT, COUNT, st.one_of(st.none(), COUNT)))


def can_be_true(report: tuple[int, int, int | None] | None, *, has_text: bool) -> bool:
    if report is None:
        return False
    prompt, completion, _ = report
    return prompt >= 0 and completion >= 0 and (completion > 0 or (prompt > 0 and not has_text))


@given(running=REPORT, final=REPORT, has_text=st.booleans(), is_by_timings=st.booleans())
@example(running=(5, 7, None), final=(5, 0, None), has_text=True, is_by_timings=True)
def test_the_best_count_that_can_be_true_is_taken(
    running: tuple[int, int, int | None] | None,
    final: tuple[int, int, int | None] | None,
    has_text: bool,
    is_by_timings: bool,
) -> None:
    """T31: final, else running, else estimated, else unknown; never negative, never more cached than prompt."""
    extra: dict[str, Any] = {}
    if running is not None and is_by_timings:
        prompt, completion, cached = running
        running = (prompt + (cached or 0), completion, cached)
        extra["timings"] = {"prompt_n": prompt, "predicted_n": completion, "cache_n": cached or 0}
    elif running is not None:
        extra["usage"] = usage_of(*running)
    stream = [chunk(choice("content", "text" if has_text else ""), **extra)]
    if final is not None:
        stream.append(chunk(usage=usage_of(*final)))
    usage = counted(*stream)
    assert 0 <= usage.cached_tokens <= usage.prompt_tokens
    assert usage.completion_tokens >= 0
    for report, source in ((final, UsageSource.FINAL), (running, UsageSource.CUMULATIVE)):
        if report is not None and can_be_true(report, has_text=has_text):
            prompt, completion, cached = report
            assert usage == TokenUsage(prompt, completion, max(0, min(cached or 0, prompt)), source)
            return
    assert usage.source is (UsageSource.ESTIMATED if has_text else UsageSource.UNKNOWN)


@pytest.mark.parametrize("call", ["text", None, {}, {"function": None}, {"function": {"name": None}}])
def test_a_tool_call_of_an_odd_shape_counts_nothing(call: Any) -> None:
    assert counted(chunk({"delta": {"tool_calls": [call]}})).source is UsageSource.UNKNOWN


@pytest.mark.parametrize("kind", ["usage", "timings"])
def test_a_running_count_that_falls_is_not_believed(kind: str) -> None:
    """T31: the last zero of an engine that forgot is no count."""

    def event(completion: int) -> bytes:
        timings = {"prompt_n": 5, "predicted_n": completion}
        count = {"usage": usage_of(5, completion)} if kind == "usage" else {"timings": timings}
        return chunk(choice("content", "a"), **count)

    counts = [counted(*map(event, seen)).completion_tokens for seen in ([1, 2, 3], [1, 3, 2], [1, 3, 0])]
    assert counts == [3, 3, 3]


def test_a_final_usage_that_is_repeated_with_zeros_stays_what_it_was() -> None:
    """T31: before the finish it is a running count, after it the final one."""
    end = chunk(choice("content", "a", finish="stop"), usage=usage_of(5, 7))
    for after in (usage_of(5, 0), usage_of(0, 0), usage_of(-1, 9), usage_of(5, 7)):
        assert counted(end, chunk(usage=after)) == TokenUsage(5, 7, 0, UsageSource.FINAL)


def test_the_text_of_an_error_counts_nothing_and_ends_the_reading() -> None:
    """T31."""
    answer = reading()
    assert answer.take(chunk(choice("content", "1234"))) is not None
    assert answer.take(b'{"error": {"message": "out of memory", "code": 503}}') is None
    assert answer.fault == answers.UpstreamFault(503, "out of memory")
    assert not answer.is_complete
    assert answer.usage(prompt_bytes=PROMPT_BYTES).completion_tokens == 1


# The end


def test_an_answer_is_complete_when_it_says_so() -> None:
    answer = reading()
    assert not answer.is_complete
    assert answer.take(sse.DONE) is None
    assert answer.is_done
    assert answer.is_complete


def test_an_empty_finish_reason_ends_nothing() -> None:
    """T3: some engines send one with every piece."""
    answer = reading()
    answer.take(chunk(choice("content", "a", finish="")))
    assert not answer.is_complete


def test_an_answer_of_several_choices_is_complete_when_all_of_them_are() -> None:
    """T3: the end of one choice proves nothing for the others."""
    answer = reading()
    for index in (0, 1):
        answer.take(chunk(choice("content", "a", index=index)))
    answer.take(chunk(choice("content", "", index=1, finish="stop")))
    assert not answer.is_complete
    answer.take(chunk(choice("content", "", index=0, finish="length")))
    answer.take(chunk(choice("content", "", index=0)))
    assert answer.is_complete


def test_an_answer_is_complete_when_as_many_choices_are_as_were_asked_for() -> None:
    """T3: of those that never began, nobody can see that they are missing."""
    answer = reading(choices=2)
    answer.take(chunk(choice("content", "a", index=0, finish="stop")))
    assert not answer.is_complete
    answer.take(chunk(choice("content", "a", index=1, finish="stop")))
    assert answer.is_complete


@pytest.mark.parametrize("reason", sorted(answers.CUT_SHORT))
def test_an_answer_that_the_engine_gave_up_is_none(reason: str) -> None:
    """T3, T36: a finish_reason that says so is no finish."""
    answer = reading()
    assert answer.take(chunk(choice("content", "a", finish=reason))) is None
    assert answer.fault == answers.UpstreamFault(500, "")
    assert not answer.is_complete
    with pytest.raises(answers.ReportedFault):
        answers.read_whole(chunk(choice("text", "a", finish=reason)), hides_cached=True)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b'{"choices": 1}',
        b'{"choices": [{"delta": "text"}]}',
        b'{"choices": [{"index": [0]}]}',
        b'{"choices": [{"delta": {"content": 5}}]}',
        b'{"usage": {"prompt_tokens": "many"}}',
        b'{"id": NaN}',
        b'{"error":' + b"[" * 100_000,
        b'{"x":' + b"[" * 100_000,
    ],
)
def test_what_is_not_a_chunk_is_a_bad_answer(payload: bytes) -> None:
    """T36, T33: never an error of ours."""
    with pytest.raises(answers.BadAnswer):
        reading().take(payload)


HIDDEN_GARBAGE = [b'{"x": "\xff", %b}', b'{"\xff": 1, %b}', b'{"x": 1e999, %b}']


@pytest.mark.parametrize("body", HIDDEN_GARBAGE)
def test_garbage_in_a_field_that_is_only_looked_at_later_is_a_bad_answer_too(body: bytes) -> None:
    """T36, T33: fields that a first reading passes over."""
    payload = body % b'"choices": []'
    with pytest.raises(answers.BadAnswer):
        AnswerAssembler(is_chat=True).take(payload)


@pytest.mark.parametrize("inside", [b'"x": [}', b'"\xff": 1'])
def test_garbage_inside_the_usage_is_a_bad_answer(inside: bytes) -> None:
    """T36: also where the usage has to be shown without its cached tokens."""
    usage = b'{"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 1}, %b}' % inside
    payload = b'{"choices": [], "usage": %b}' % usage
    with pytest.raises(answers.BadAnswer):
        reading(wants_usage=True, hides_cached=True).take(payload)
    with pytest.raises(answers.BadAnswer):
        answers.read_whole(payload, hides_cached=True)


def test_a_number_that_is_none_in_a_field_that_may_speak_of_the_cache_is_a_bad_answer() -> None:
    """T36: it is found when that field is read to hide something in it: of an event, beside running counts, of a whole answer."""
    unknown = b'"x": {"cached": 1, "much": 1e999}'
    with pytest.raises(answers.BadAnswer):
        reading(hides_cached=True).take(b'{"choices": [], %b}' % unknown)
    answer = reading(hides_cached=True)
    answer.take(chunk(choice("content", "a")))
    counts = (
        b'{"choices": [{"index": 0, "delta": {"content": "b"}}], "timings": {"prompt_n": 1}, %b}' % unknown
    )
    with pytest.raises(answers.BadAnswer):
        answer.take(counts)
    with pytest.raises(answers.BadAnswer):
        answers.read_whole(b'{"choices": [], %b}' % unknown, hides_cached=True)


# Forwarding


@pytest.mark.slow
@given(
    wants_usage=st.booleans(),
    hides_cached=st.booleans(),
    hides_progress=st.booleans(),
    has_choices=st.booleans(),
    is_finished=st.booleans(),
    has_usage=st.booleans(),
    has_timings=st.booleans(),
    unknown=st.dictionaries(
        st.text(max_size=5).filter(lambda name: "cache" not in name.lower()).map(lambda name: f"x_{name}"),
        st.recursive(st.text() | st.integers(0, 9) | st.none(), st.lists),
    ),
)
def test_nothing_hidden_passes_and_everything_else_passes_as_it_came(
    wants_usage: bool,
    hides_cached: bool,
    hides_progress: bool,
    has_choices: bool,
    is_finished: bool,
    has_usage: bool,
    has_timings: bool,
    unknown: dict[str, Any],
) -> None:
    """T31, T42: every other field is the same bytes, also those that nobody knows."""
    extra: dict[str, Any] = dict(unknown)
    if has_usage:
        extra["usage"] = usage_of(9, 3, 8) | {"total_tokens": 12}
    if has_timings:
        extra["timings"] = {"prompt_n": 1, "cache_n": 8, "predicted_n": 3}
    choices = [choice("content", "\u00e9", finish="stop" if is_finished else None)] if has_choices else []
    payload = chunk(*choices, **extra)
    answer = reading(wants_usage=wants_usage, hides_cached=hides_cached, hides_progress=hides_progress)
    forwarded = answer.take(payload)
    if has_usage and not has_choices and not wants_usage:
        assert forwarded is None
        return
    assert forwarded is not None
    before, after = raw_fields(payload), raw_fields(forwarded)
    shows_usage = has_usage and wants_usage and (is_finished or not has_choices)
    assert ("usage" in after) == shows_usage
    assert ("timings" in after) == (has_timings and not hides_progress and not hides_cached)
    if shows_usage:
        shown = json.loads(bytes(after.pop("usage")))
        assert ("prompt_tokens_details" in shown) == (not hides_cached)
        assert (shown["prompt_tokens"], shown["completion_tokens"], shown["total_tokens"]) == (9, 3, 12)
    before.pop("usage", None)
    if hides_progress or hides_cached:
        before.pop("timings", None)
    assert {key: bytes(raw) for key, raw in after.items()} == {key: bytes(raw) for key, raw in before.items()}
    if not has_usage and not has_timings:
        assert forwarded is payload


@pytest.mark.parametrize("hides_cached", [True, False])
def test_progress_that_tells_what_was_cached_is_hidden_with_it(hides_cached: bool) -> None:
    """T42: prompt tokens worked on are those that were not cached; also before the first token, and in a whole answer."""
    timings = {"cache_n": 8, "prompt_n": 1, "predicted_n": 1}
    progress = chunk(choice("content", ""), prompt_progress={"total": 9, "cache": 8})
    body = chunk(choice("text", "a", finish="stop"), timings=timings)
    shown = reading(hides_cached=hides_cached).take(progress) or b""
    whole, _ = answers.read_whole(body, hides_cached=hides_cached)
    assert (b"cache" in shown) == (not hides_cached)
    assert ("timings" in json.loads(whole)) == (not hides_cached)


@pytest.mark.parametrize("hides_cached", [True, False])
def test_a_whole_answer_is_counted_and_cleaned_of_cached_tokens_alone(hides_cached: bool) -> None:
    """T42."""
    body = chunk(choice("text", "a"), usage=usage_of(9, 3, 8) | {"other": 1}, z=[1.50])
    forwarded, usage = answers.read_whole(body, hides_cached=hides_cached)
    assert usage == TokenUsage(9, 3, 8, UsageSource.FINAL)
    if not hides_cached:
        assert forwarded is body
        return
    expected = json.loads(body)
    del expected["usage"]["prompt_tokens_details"]
    assert json.loads(forwarded) == expected


@pytest.mark.parametrize(
    ("usage", "text", "source"),
    [
        (None, "a", UsageSource.UNKNOWN),
        (usage_of(0, 0), "a", UsageSource.UNKNOWN),
        (usage_of(5, 0), "a", UsageSource.UNKNOWN),
        (usage_of(-5, 4), "a", UsageSource.UNKNOWN),
        (usage_of(5, 0), "", UsageSource.FINAL),
        (usage_of(5, 2), "a", UsageSource.FINAL),
    ],
)
def test_a_whole_answer_without_a_count_that_can_be_true_has_an_unknown_one(
    usage: dict[str, Any] | None, text: str, source: UsageSource
) -> None:
    """T31."""
    body = json.dumps({"choices": [{"message": {"content": text}}], "usage": usage}).encode()
    forwarded, found = answers.read_whole(body, hides_cached=True)
    assert found.source is source
    assert forwarded is body
    assert answers.output_bytes(body) == len(text)


def test_embeddings_are_an_answer_and_have_no_output() -> None:
    body = json.dumps({"data": [{"embedding": [0.5]}] * 3, "usage": {"prompt_tokens": 5}}).encode()
    counts = TokenUsage(5, 0, 0, UsageSource.FINAL, units=3)
    assert answers.read_whole(body, hides_cached=True) == (body, counts)
    unknown = TokenUsage(source=UsageSource.UNKNOWN, units=1)
    assert answers.read_whole(b'{"data": [{}]}', hides_cached=True)[1] == unknown
    assert answers.output_bytes(b'{"choices": 7}') == 0


@pytest.mark.parametrize(("said", "recorded"), [(3, 3), (0, 0), (None, 0), (-1, 0), (12, 9)])
def test_reasoning_is_a_part_of_what_was_generated(said: int | None, recorded: int) -> None:
    """Shown apart, in streams and whole answers alike; a part that is larger than its whole is cut to it."""
    usage = {
        "prompt_tokens": 5,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": said},
    }
    wanted = TokenUsage(5, 9, 0, UsageSource.FINAL, recorded)
    body = json.dumps({"choices": [], "usage": usage}).encode()
    assert counted(body) == wanted
    assert answers.read_whole(body, hides_cached=True)[1] == wanted


@pytest.mark.parametrize("counts", [(TOKENS_MAX + 1, 1), (1, TOKENS_MAX + 1), (10**17, 10**17)])
def test_more_tokens_than_any_request_can_have_are_not_believed(counts: tuple[int, int]) -> None:
    """T31: a charge by them would be absurd, or larger than a record holds."""
    body = json.dumps({"choices": [], "usage": usage_of(*counts)}).encode()
    assert counted(body).source is UsageSource.UNKNOWN
    most = json.dumps({"choices": [], "usage": usage_of(TOKENS_MAX, TOKENS_MAX)}).encode()
    assert counted(most).completion_tokens == TOKENS_MAX


@pytest.mark.parametrize("data", ["{}", '{"a": [1]}', '"x"', "1", "true", "null"])
def test_whatever_stands_in_the_field_for_vectors_beside_choices_is_passed_on(data: str) -> None:
    body = b'{"choices": [], "data": %b}' % data.encode()
    assert answers.read_whole(body, hides_cached=True) == (body, TokenUsage(source=UsageSource.UNKNOWN))


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b"{}", b'{"choices": null}', b'{"choices": 5}', b"[" * 100_000, b'"\xff"']
)
def test_a_body_without_an_answer_is_a_bad_one(body: bytes) -> None:
    """T36."""
    with pytest.raises(answers.BadAnswer):
        answers.read_whole(body, hides_cached=True)


def test_an_error_under_a_status_of_success_is_an_error() -> None:
    """T36."""
    with pytest.raises(answers.ReportedFault) as reported:
        answers.read_whole(b'{"choices": [], "error": {"message": "no", "code": 400}}', hides_cached=True)
    assert reported.value.fault == answers.UpstreamFault(400, "no")


def test_text_that_no_caller_could_read_is_not_passed_on() -> None:
    """Also where it stands in a field that we don't know."""
    for text in (b"\xff", b"\xe2\x82", b"\xed\xa0\x80"):
        event = b'{"choices":[{"index":0,"delta":{"content":"a"}}],"note":"%b"}' % text
        with pytest.raises(answers.BadAnswer):
            answers.StreamedAnswer(
                choices=1, wants_usage=True, hides_cached=False, hides_progress=False
            ).take(event)
        with pytest.raises(answers.BadAnswer):
            answers.read_whole(event, hides_cached=False)


@given(
    content=st.text() | st.sampled_from([',"timings":{', '"timings":{}}', "}}", '{"timings":{"a":1}}']),
    timings=st.dictionaries(
        st.text(max_size=4),
        st.integers() | st.text(max_size=4) | st.lists(st.integers(), max_size=2),
        max_size=4,
    ),
    before=st.booleans(),
    after=st.booleans(),
)
def test_counts_beside_a_piece_of_text_are_cut_off_and_nothing_else(
    content: str, timings: dict[str, Any], before: bool, after: bool
) -> None:
    """Wherever the field stands, and whatever the text looks like."""
    reader = answers.StreamedAnswer(choices=1, wants_usage=True, hides_cached=False, hides_progress=True)
    begun = chunk(choice("content", "a"))
    assert reader.take(begun) == begun
    fields = json.loads(chunk(choice("content", content or "b")))
    counts = {**timings, "prompt_n": 1, "predicted_n": 2, "cache_n": 0}
    event: dict[str, Any] = {"timings": counts, **fields} if before else {**fields, "timings": counts}
    event |= {"nested": {"timings": {"a": 1}}} if after else {}
    taken = reader.take(json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode())
    assert taken is not None
    del event["timings"]
    assert json.loads(taken) == event
    assert reader.usage(prompt_bytes=4).completion_tokens == 2
