"""Can the scripted engine show every fault that its table promises, and only to the requests that a script names?"""

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.engines import scripted_faults
from headrace.engines.scripted_faults import FAULTS, Kind, Scope, Script
from headrace.policies.replica_life import Reason, why_ended
from tests.support.scripted import ScriptedEngine, scripted_engine
from tests.support.wire import Exchange, exchange, post, read

CHAT = "/v1/chat/completions"
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "scripted-engine.md"
LAST_CHUNK = b"\r\n0\r\n\r\n"
TOOLS = [{"type": "function", "function": {"name": "look_up"}}]


@pytest.fixture(scope="module")
def shared() -> Iterator[ScriptedEngine]:
    with scripted_engine(tokens=10) as running:
        yield running


@pytest.fixture
def engine(shared: ScriptedEngine) -> Iterator[ScriptedEngine]:
    """An engine without faults; afterwards nothing may be left running in it."""
    shared.set_faults("")
    yield shared
    shared.set_faults("")
    shared.wait_for_stats(lambda stats: stats["running"] == stats["waiting"] == 0)


def chat(**fields: Any) -> bytes:
    return json.dumps(
        {"model": "scripted", "messages": [{"role": "user", "content": "hello"}], **fields}
    ).encode()


def stream(engine: ScriptedEngine, script: str, *, until: bytes = LAST_CHUNK, **fields: Any) -> Exchange:
    engine.set_faults(script)
    return exchange(engine.port, post(CHAT, chat(stream=True, **fields)), until=until)


def whole(engine: ScriptedEngine, script: str, *, until: bytes = b"never", **fields: Any) -> Exchange:
    engine.set_faults(script)
    request = post(CHAT, chat(**fields), headers="connection: close\r\n")
    return exchange(engine.port, request, until=until)


# Endings


def test_refuse_resets_before_any_byte(engine: ScriptedEngine) -> None:
    """T17"""
    seen = stream(engine, "refuse", until=b"never")
    assert (seen.data, seen.end) == (b"", "reset")


def test_die_ends_the_process_at_the_request() -> None:
    with scripted_engine(faults="die@3") as mortal:
        for _ in range(2):
            assert mortal.request("POST", CHAT, chat())[0] == 200
        assert exchange(mortal.port, post(CHAT, chat()), until=b"never").data == b""
        assert mortal.process.wait(60) == 137


def test_an_engine_that_runs_out_of_memory_says_so_with_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """E8: what is told of its end can be told from a bare kill."""
    with scripted_engine(faults="out_of_memory@2") as mortal:
        assert mortal.request("POST", CHAT, chat())[0] == 200
        assert exchange(mortal.port, post(CHAT, chat()), until=b"never").data == b""
        assert mortal.process.wait(60) == 137
    last_words = capfd.readouterr().err
    assert why_ended(137, said=last_words).reason is Reason.OUT_OF_MEMORY


def test_die_after_events_delivers_them_first() -> None:
    """T1"""
    with scripted_engine(faults="die:5", log=True) as mortal:
        seen = exchange(mortal.port, post(CHAT, chat(stream=True)), until=b"never")
        assert len(seen.events) == 5
        assert not seen.is_complete
        assert mortal.process.wait(60) == 137
        assert [(e["outcome"], e["completion_tokens"]) for e in mortal.executions()] == [("fault", 5)]


def test_stall_is_silent_with_the_connection_open_and_the_slot_held(engine: ScriptedEngine) -> None:
    """T2, T20, T27"""
    engine.set_faults("stall:5")
    before = engine.stats()
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(post(CHAT, chat(stream=True)))
        assert len(read(client, until=b"004 ").payloads) <= 5
        assert read(client).end == "open"
        assert engine.stats()["running"] == 1
        assert engine.request("GET", "/health")[0] == 200
    engine.wait_for_stats(lambda stats: stats["aborted"] == before["aborted"] + 1)


@pytest.mark.parametrize("is_stream", [True, False])
def test_stall_at_zero_never_sends_the_head(engine: ScriptedEngine, is_stream: bool) -> None:
    engine.set_faults("stall:0")
    seen = exchange(engine.port, post(CHAT, chat(stream=is_stream)))
    assert (seen.data, seen.end) == (b"", "open")


@pytest.mark.parametrize(("script", "end"), [("cut:5", "reset"), ("close_raw:5", "fin")])
def test_cut_and_close_raw_break_the_message_after_their_events(
    engine: ScriptedEngine, script: str, end: str
) -> None:
    seen = stream(engine, script, until=b"never")
    assert (len(seen.events), seen.end, seen.is_complete) == (5, end, False)
    if script == "close_raw:5":
        assert seen.data.count(b"data: ") == 6, "the end comes inside the next chunk"


@pytest.mark.parametrize(("script", "end"), [("cut:0", "reset"), ("close_raw:0", "fin")])
def test_an_answer_can_be_lost_after_the_work(engine: ScriptedEngine, script: str, end: str) -> None:
    """T19"""
    before = engine.stats()
    seen = whole(engine, script)
    assert (seen.data, seen.end) == (b"", end)
    after = engine.stats()
    assert after["faulted"] == before["faulted"] + 1
    assert after["completion_tokens"] == before["completion_tokens"] + 10


def test_close_ends_cleanly_without_the_signs_of_an_end(engine: ScriptedEngine) -> None:
    """T3"""
    seen = stream(engine, "close:5")
    assert seen.is_complete
    assert len(seen.events) == 5
    assert b'finish_reason":"stop' not in seen.body
    assert b"[DONE]" not in seen.body


@pytest.mark.parametrize("script", ["cut:1", "close_raw:1", "close:1", "stall:1"])
def test_a_whole_answer_breaks_at_its_half(engine: ScriptedEngine, script: str) -> None:
    seen = whole(engine, script, until=b'"choices"' if script == "stall:1" else b"never")
    assert seen.status == 200
    assert seen.body.startswith(b'{"id":')
    with pytest.raises(json.JSONDecodeError):
        json.loads(seen.body)


def test_done_open_never_ends_the_message_but_frees_the_slot(engine: ScriptedEngine) -> None:
    """T4"""
    engine.set_faults("done_open")
    with socket.create_connection(("127.0.0.1", engine.port)) as client:
        client.sendall(post(CHAT, chat(stream=True)))
        seen = read(client, until=b"data: [DONE]\n\n\r\n")
        assert read(client) == Exchange(b"", "open")
        assert not seen.is_complete
        assert engine.stats()["running"] == 0


def test_no_done_finishes_without_the_last_word(engine: ScriptedEngine) -> None:
    seen = stream(engine, "no_done")
    assert seen.is_complete
    assert seen.events[-1]["choices"][0]["finish_reason"] == "stop"
    assert "[DONE]" not in seen.payloads


def test_keepalive_close_ends_only_idle_connections(engine: ScriptedEngine) -> None:
    """Report 58"""
    engine.set_faults("keepalive_close:20")
    seen = exchange(engine.port, post(CHAT, chat()), until=b"never")
    assert (seen.status, seen.end) == (200, "fin")
    engine.set_faults("")
    assert exchange(engine.port, post(CHAT, chat())).end == "open"


# Errors and wrong answers


def test_error_has_its_status_and_retry_after(engine: ScriptedEngine) -> None:
    """T18, T25, T26"""
    for script, status, retry_after in (
        ("error:500", 500, None),
        ("error:400", 400, None),
        ("error:429:7", 429, 7),
    ):
        seen = whole(engine, script)
        assert seen.status == status
        assert json.loads(seen.body)["error"]["code"] == status
        found = re.search(rb"retry-after: (\d+)\r\n", seen.head + b"\r\n")
        assert (found and int(found[1])) == retry_after


def test_error_first_hides_an_error_in_a_200(engine: ScriptedEngine) -> None:
    """Reports 5 and 50"""
    for script, code in (("error_first", 400), ("error_first:503", 503)):
        seen = stream(engine, script)
        assert seen.status == 200
        assert seen.events[0]["error"]["code"] == code
        assert len(seen.events) == 1
        assert json.loads(whole(engine, script).body)["error"]["code"] == code


def test_error_event_comes_after_its_events_and_before_done(engine: ScriptedEngine) -> None:
    """Report 7"""
    seen = stream(engine, "error_event:5")
    assert len(seen.events) == 6
    assert seen.events[5]["error"]["code"] == 500
    assert seen.payloads[-1] == "[DONE]"


def test_an_error_event_can_have_another_code(engine: ScriptedEngine) -> None:
    assert stream(engine, "error_event:5:503").events[5]["error"]["code"] == 503


def test_bad_event_is_no_json_and_comes_after_its_events(engine: ScriptedEngine) -> None:
    seen = stream(engine, "bad_event:3")
    assert len(seen.payloads) == 5
    assert seen.payloads[-1] == "[DONE]"
    with pytest.raises(json.JSONDecodeError):
        json.loads(seen.payloads[3])


def test_head_only_is_a_head_and_a_reset(engine: ScriptedEngine) -> None:
    for ask in (stream, whole):
        seen = ask(engine, "head_only")
        assert (seen.status, seen.body, seen.end) == (200, b"", "reset")


def test_finish_reasons_are_empty_early_or_too_few(engine: ScriptedEngine) -> None:
    """T3"""

    def reasons(script: str, **fields: Any) -> list[Any]:
        events = stream(engine, script, **fields).events
        return [choice["finish_reason"] for event in events for choice in event["choices"]]

    assert reasons("finish:empty", max_tokens=2) == ["", "", "length"]
    assert reasons("finish:abort")[-1] == "abort"
    assert reasons("finish:first_only", max_tokens=1, n=2) == [None, None, "length"]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_the_first_half_of_the_answer(engine: ScriptedEngine, field: str) -> None:
    """Streamed and whole alike."""
    message = json.loads(whole(engine, f"reasoning:{field}", max_tokens=4).body)["choices"][0]["message"]
    assert (message[field], message["content"]) == ("000 001 ", "002 003 ")
    deltas = [
        choice["delta"]
        for event in stream(engine, f"reasoning:{field}", max_tokens=4).events
        for choice in event["choices"]
    ]
    assert "".join(delta.get(field, "") for delta in deltas) == "000 001 "
    assert "".join(delta.get("content", "") for delta in deltas) == "002 003 "


def test_error_hostile_carries_what_logs_must_escape(engine: ScriptedEngine) -> None:
    """T45"""
    seen = whole(engine, "error_hostile")
    message = json.loads(seen.body)["error"]["message"]
    assert seen.status == 500
    for part in ("\r\n", "\x1b[", "<script>", '{"'):
        assert part in message


def test_garbage_is_not_http(engine: ScriptedEngine) -> None:
    seen = stream(engine, "garbage", until=b"never")
    assert seen.end == "fin"
    assert seen.data
    assert not seen.data.startswith(b"HTTP/")


def test_html_and_content_type_are_the_wrong_kind_of_answer(engine: ScriptedEngine) -> None:
    """T36"""
    assert b"content-type: text/html" in whole(engine, "html").head
    plain = whole(engine, "content_type")
    assert b"content-type: text/plain" in plain.head
    assert json.loads(plain.body)["choices"]


def test_length_lie_promises_more_or_less_than_it_sends(engine: ScriptedEngine) -> None:
    """T36"""
    for script, difference in (("length_lie", 100), ("length_lie:longer", 100), ("length_lie:shorter", -10)):
        for seen in (whole(engine, script), stream(engine, script, until=b"[DONE]\n\n")):
            found = re.search(rb"content-length: (\d+)", seen.head)
            assert found is not None
            assert int(found[1]) == len(seen.body) + difference


def test_header_injection_forges_what_only_we_may_say(engine: ScriptedEngine) -> None:
    """T36"""
    assert b"\r\nset-cookie: session=forged\r\n" in whole(engine, "header_injection").head
    assert b"x-note: one\nx-request-id: forged" in whole(engine, "header_injection:lf").head


def test_sizes_grow_past_any_cap(engine: ScriptedEngine) -> None:
    """T36, T6a, report 3"""
    assert len(whole(engine, "head_huge:100000").head) > 100_000
    answer = json.loads(whole(engine, "json_huge:300000").body)
    assert len(answer["choices"][0]["message"]["content"]) == 300_000
    sizes = [
        len(event["choices"][0]["delta"].get("content", "")) for event in stream(engine, "big:200000").events
    ]
    assert sizes == [4] * 5 + [200_000] + [4] * 4 + [0]
    called = stream(engine, "big:200000", tools=TOOLS, tool_choice="required")
    assert len(called.data) > 200_000


def test_empty_ends_well_without_a_token(engine: ScriptedEngine) -> None:
    """Report 98"""
    seen = stream(engine, "empty")
    assert [event["choices"][0]["finish_reason"] for event in seen.events] == ["stop"]
    assert json.loads(whole(engine, "empty").body)["usage"]["completion_tokens"] == 0


# The shape of events


def test_delta_cuts_the_same_text_elsewhere(engine: ScriptedEngine) -> None:
    """T38, report 36"""
    plain = stream(engine, "")
    for step in (1, 3, 7, 1000):
        recut = stream(engine, f"delta:{step}")
        assert recut.text == plain.text
        assert len(recut.events) == -(-40 // step) + 1
    assert len(stream(engine, "delta:1", tools=TOOLS, tool_choice="required").events) == 41


def test_slice_cuts_writes_and_changes_no_byte(engine: ScriptedEngine) -> None:
    """T6a"""
    plain = stream(engine, "")
    assert stream(engine, "slice:1") == stream(engine, "slice:7") == plain


def test_unicode_survives_one_byte_writes(engine: ScriptedEngine) -> None:
    """T6a, report 14"""
    text = stream(engine, "unicode").text
    assert "🫠𠮷" in text
    assert "안" in text
    assert stream(engine, "unicode:one_byte").text == text


def test_line_separators_come_raw(engine: ScriptedEngine) -> None:
    """T6a, report 1"""
    for script, separator in (("u2028", "\u2028"), ("u0085", "\u0085")):
        seen = stream(engine, script)
        assert separator.encode() in seen.body
        assert separator in seen.text


def test_line_endings_and_comments_are_other_valid_framings(engine: ScriptedEngine) -> None:
    """T6a"""
    plain = stream(engine, "").body
    assert stream(engine, "crlf").body == plain.replace(b"\n", b"\r\n")
    assert stream(engine, "cr").body == plain.replace(b"\n", b"\r")
    assert stream(engine, "comments").body == plain.replace(b"data: ", b": ping\n\ndata: ")


def usages(seen: Exchange) -> list[dict[str, Any]]:
    return [event["usage"] for event in seen.events if "usage" in event]


def test_usage_can_be_missing_zero_or_negative(engine: ScriptedEngine) -> None:
    """T31"""
    asked: dict[str, Any] = {"stream_options": {"include_usage": True}}
    assert usages(stream(engine, "usage:none", **asked)) == []
    assert "usage" not in json.loads(whole(engine, "usage:none").body)
    (zero,) = usages(stream(engine, "usage:zero", **asked))
    assert (zero["prompt_tokens"], zero["completion_tokens"]) == (0, 0)
    (negative,) = usages(stream(engine, "usage:negative", **asked))
    assert negative["completion_tokens"] == -1


def test_usage_can_run_along(engine: ScriptedEngine) -> None:
    """T31, report 29"""
    counts = [usage["completion_tokens"] for usage in usages(stream(engine, "usage:cumulative"))]
    assert counts == [*range(1, 11), 10]


def test_usage_can_come_in_unusual_places(engine: ScriptedEngine) -> None:
    """T31, report 28"""
    after = stream(engine, "usage:after_finish")
    assert after.events[-1]["choices"] == []
    assert usages(after)[0]["completion_tokens"] == 10
    assert stream(engine, "usage:after_done").payloads[-2] == "[DONE]"
    beside = stream(engine, "usage:with_choices+cached=15872").events[-1]
    assert beside["choices"][0]["delta"] == {}
    assert beside["usage"]["prompt_tokens_details"]["cached_tokens"] == 15872
    assert beside["usage"]["prompt_tokens"] == 15872


def test_tools_are_called_twice_with_good_and_bad_indexes(engine: ScriptedEngine) -> None:
    """T38, report 60"""
    for script, indexes in (("tools:parallel", {0, 1}), ("tools:same_index", {0})):
        seen = stream(engine, script, tools=TOOLS, tool_choice="required")
        deltas = [event["choices"][0]["delta"] for event in seen.events]
        calls = [delta["tool_calls"][0] for delta in deltas if delta]
        assert {call["index"] for call in calls} == indexes
        assert len({call["id"] for call in calls if "id" in call}) == 2
        message = json.loads(whole(engine, script, tools=TOOLS, tool_choice="required").body)["choices"][0][
            "message"
        ]
        for call in message["tool_calls"]:
            assert json.loads(call["function"]["arguments"])["w"]


# Time and the other paths


def test_ttft_and_slow_are_waits_of_their_own() -> None:
    """T6b"""
    with scripted_engine(tokens=4, log=True) as paced:
        for script in ("ttft:80", "slow:30"):
            stream(paced, script)
            whole(paced, script)
        seconds = [entry["seconds"] for entry in paced.executions()]
        assert all(took >= 0.08 for took in seconds), seconds


def test_health_and_models_fail_apart_from_the_work(engine: ScriptedEngine) -> None:
    """T20, T21, T22"""
    engine.set_faults("health_down@1/2, models_slow:60000, health_slow:1")
    assert [engine.request("GET", "/health")[0] for _ in range(4)] == [200, 503, 200, 503]
    assert exchange(engine.port, b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n") == Exchange(b"", "open")
    assert engine.request("POST", CHAT, chat())[0] == 200


def test_loading_refuses_everything_for_its_time(engine: ScriptedEngine) -> None:
    """Report 81"""
    engine.set_faults("loading:60000")
    assert engine.request("GET", "/health")[0] == engine.request("POST", CHAT, chat())[0] == 503
    engine.set_faults("loading:50")
    end_s = time.monotonic() + 10
    while engine.request("GET", "/v1/models")[0] == 503:
        assert time.monotonic() < end_s
    assert engine.request("POST", CHAT, chat())[0] == 200


# The language


def ordinals(script: str, *, scope: Scope = Scope.INFERENCE, among: int = 10) -> list[int]:
    """The requests, counted from 1, that a script of one rule is for."""
    running = Script(scripted_faults.parse(script))
    return [ordinal for ordinal in range(1, among + 1) if running.next(scope).rules]


def test_when_names_requests_counted_from_one() -> None:
    assert ordinals("cut:1") == list(range(1, 11))
    assert ordinals("cut:1@3") == [3]
    assert ordinals("cut:1@3-5") == [3, 4, 5]
    assert ordinals("cut:1@8+") == [8, 9, 10]
    assert ordinals("cut:1@1/4") == [4, 8]
    assert ordinals("health_down@2") == []
    assert ordinals("health_down@2", scope=Scope.HEALTH) == [2]


def test_counting_starts_again_when_the_script_is_set(engine: ScriptedEngine) -> None:
    for _ in range(2):
        engine.set_faults("error:500@2")
        assert [engine.request("POST", CHAT, chat())[0] for _ in range(3)] == [200, 500, 200]


def test_rules_for_one_request_add_up(engine: ScriptedEngine) -> None:
    """Of two rules for one fault the later one counts."""
    rules = scripted_faults.parse("cut:5; usage:zero ,usage:cached=3;cut:7@1-2,")
    faults = Script(rules).next(Scope.INFERENCE)
    assert faults.number(Kind.CUT) == 7
    assert faults.words(Kind.USAGE) == {"zero", "cached=3"}
    assert len(stream(engine, "crlf, cut:2, slice:3", until=b"never").body.split(b"\r\n\r\n")) == 3


def test_an_unknown_fault_names_the_known_ones_and_leaves_the_script_alone(engine: ScriptedEngine) -> None:
    engine.set_faults("error:500")
    status, body = engine.request("POST", "/scripted/faults", b"stal:5")
    assert status == 400
    message = json.loads(body)["error"]["message"]
    assert "did you mean `stall`" in message
    assert all(fault.signature in message for fault in FAULTS)
    assert engine.request("POST", CHAT, chat())[0] == 500
    command = [sys.executable, "-m", "headrace", "engine", "scripted", "--port", "0", "--fault", "foo"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 2
    assert "unknown fault `foo`" in ended.stderr
