"""Does the service keep the public contract? Each promise of it is one check, made on the service itself."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.evidence.certify import Stage
from headrace.evidence.certify_caller import CHAT, COMPLETIONS, DONE, MODELS, Caller, Reply
from headrace.evidence.certify_subject import LIMITED_REQUESTS
from headrace.policies.certification import at_most, told

TEXT = "Say hello."
_FINISH = ("stop", "length")
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


class Broken(Exception):
    """What the service does instead of what was promised; in the words of the figure."""


@dataclass(frozen=True, slots=True)
class Check:
    """One promise. `is_ours`: of headrace alone, and not of every OpenAI-compatible server."""

    promise: str
    make: Callable[[Stage], Awaitable[None]]
    is_ours: bool = False


async def keep_contract(stage: Stage) -> None:
    """The step: every check, and how many aren't kept."""
    checks = [check for check in CHECKS if stage.subject.running is not None or not check.is_ours]
    broken = []
    for check in checks:
        try:
            await check.make(stage)
        except Broken as what:
            broken.append(f"{check.promise}: {what}")
    stage.add(told("promises checked", len(checks)), at_most("promises not kept", len(broken), 0))
    stage.notes += broken
    if len(checks) < len(CHECKS):
        stage.notes.append(f"{len(CHECKS) - len(checks)} promises of headrace alone were not checked")


def _must(claim: object, what: str) -> None:
    if not claim:
        raise Broken(what)


def _ok(reply: Reply) -> Reply:
    _must(reply.status == 200 and reply.is_whole, f"{reply.status or 'no answer'} {reply.reason}")
    return reply


def _object(reply: Reply) -> dict[str, Any]:
    said = reply.json()
    if not isinstance(said, dict):
        raise Broken("no JSON object")
    return said


async def _lists_models(stage: Stage) -> None:
    caller = stage.subject.owner
    said = _object(_ok(await caller.ask("GET", MODELS)))
    _must(said.get("object") == "list", "no list")
    ids = [each.get("id") for each in said.get("data") or [] if isinstance(each, dict)]
    _must(caller.model in ids, f"{caller.model} is not in it")


async def _answers_whole(stage: Stage) -> None:
    _answer(_object(_ok(await stage.subject.owner.chat(TEXT, output_tokens_max=8))), most=8)


async def _answers_completions(stage: Stage) -> None:
    caller = stage.subject.owner
    body = {"model": caller.model, "prompt": TEXT, "max_tokens": 4}
    said = _object(_ok(await caller.ask("POST", COMPLETIONS, body)))
    _must(said.get("object") == "text_completion", "no text completion")
    _must(isinstance(said["choices"][0].get("text"), str), "no text")


def _answer(said: dict[str, Any], *, most: int) -> None:
    _must(said.get("object") == "chat.completion", "no chat completion")
    _must(
        said.get("id") and isinstance(said.get("created"), int) and said.get("model"),
        "id, created or model is missing",
    )
    choice = (said.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    _must(message.get("role") == "assistant" and isinstance(message.get("content"), str), "no message")
    _must(choice.get("finish_reason") in _FINISH, f"finish_reason {choice.get('finish_reason')!r}")
    _counts(said.get("usage"), most=most)


def _counts(usage: Any, *, most: int) -> None:
    _must(isinstance(usage, dict) and all(isinstance(usage.get(name), int) for name in _USAGE), "no usage")
    prompt, completion, total = (usage[name] for name in _USAGE)
    _must(prompt > 0 and total == prompt + completion, f"usage doesn't add up: {usage}")
    _must(completion <= most, f"{completion} tokens, where at most {most} were asked for")


async def _streams(stage: Stage) -> None:
    reply = _ok(await stage.subject.owner.chat(TEXT, stream=True, output_tokens_max=8))
    kind = reply.headers.get("content-type", "")
    _must(kind.startswith("text/event-stream"), f"content-type {kind!r}")
    _must(reply.events[-1:] == [DONE] and reply.events.count(DONE) == 1, "it doesn't end with one [DONE]")
    lines = [line for line in reply.body.split(b"\n") if line and not line.startswith((b"data: ", b":"))]
    _must(not lines, f"a line that is no event: {lines[:1]}")
    chunks = reply.chunks()
    _must(all(each.get("object") == "chat.completion.chunk" for each in chunks), "an event that is no chunk")
    _must(len({each.get("id") for each in chunks}) == 1, "the id changes on the way")
    ends = [
        choice["finish_reason"]
        for each in chunks
        for choice in each["choices"]
        if choice.get("finish_reason")
    ]
    _must(len(ends) == 1 and ends[0] in _FINISH, f"finish_reason {ends}")
    _must(
        chunks[0]["choices"] and chunks[0]["choices"][0]["delta"].get("role") == "assistant",
        "no role at first",
    )


async def _streams_usage(stage: Stage) -> None:
    reply = _ok(await stage.subject.owner.chat(TEXT, stream=True, output_tokens_max=8))
    *before, last = reply.chunks() or [{}]
    _must(last.get("choices") == [], "the last chunk has choices")
    _counts(last.get("usage"), most=8)
    _must(not any(each.get("usage") for each in before), "usage before the end")
    bare = _ok(await stage.subject.owner.chat(TEXT, stream=True, output_tokens_max=2, stream_options=None))
    _must(not any(each.get("usage") for each in bare.chunks()), "usage that nobody asked for")


def _refused(reply: Reply, status: int, code: str, *, is_ours: bool, param: str | None = None) -> None:
    _must(reply.status == status, f"{reply.status} instead of {status}")
    said = reply.json()
    error = said.get("error") if isinstance(said, dict) else None
    if not isinstance(error, dict) or not isinstance(error.get("message"), str) or not error.get("type"):
        raise Broken("no error object")
    if is_ours:
        _must(error.get("code") == code, f"code {error.get('code')!r} instead of {code!r}")
        _must(error.get("request_id") == reply.request_id, "the error has another request id than the head")
        _must(reply.headers.get("x-headrace-reason") == code, "x-headrace-reason isn't the code")
    if param is not None:
        _must(error.get("param") == param, f"param {error.get('param')!r} instead of {param!r}")


async def _refuses_bad_bodies(stage: Stage) -> None:
    caller, ours = stage.subject.owner, stage.subject.running is not None
    _refused(await caller.ask("POST", CHAT, b"{"), 400, "invalid_request", is_ours=ours)
    bad: Sequence[tuple[dict[str, Any], str]] = (
        ({"model": caller.model}, "messages"),
        (
            {"model": caller.model, "messages": [{"role": "user", "content": TEXT}], "max_tokens": "many"},
            "max_tokens",
        ),
    )
    for body, param in bad:
        reply = await caller.ask("POST", CHAT, body)
        _refused(reply, 400, "invalid_request", is_ours=ours, param=param if ours else None)


async def _refuses_unknown(stage: Stage) -> None:
    caller, ours = stage.subject.owner, stage.subject.running is not None
    body = {"model": "no-such-model", "messages": [{"role": "user", "content": TEXT}]}
    _refused(await caller.ask("POST", CHAT, body), 404, "model_not_found", is_ours=ours)
    if ours:
        _refused(await caller.ask("GET", "/v1/nothing"), 404, "not_found", is_ours=ours)


async def _refuses_strangers(stage: Stage) -> None:
    caller, ours = stage.subject.owner, stage.subject.running is not None
    body = {"model": caller.model, "messages": [{"role": "user", "content": TEXT}]}
    for key in ("", "sk-not-a-key"):
        for method, path, content in (("POST", CHAT, body), ("GET", MODELS, None)):
            reply = await caller.ask(method, path, content, key=key)
            _refused(reply, 401, "unauthenticated", is_ours=ours)
            _must(not ours or reply.headers.get("www-authenticate") == "Bearer", "no www-authenticate")


async def _names_requests(stage: Stage) -> None:
    replies = [await stage.subject.owner.chat(TEXT, output_tokens_max=1) for _ in range(2)]
    replies.append(
        await stage.subject.owner.chat(TEXT, output_tokens_max=1, headers={"x-request-id": "mine"})
    )
    ids = [reply.request_id for reply in replies]
    _must(all(ids) and len(set(ids)) == len(ids), "a request has no id of its own")
    _must("mine" not in ids, "the caller's id is taken over")
    _must(all(reply.headers.get("x-headrace-model-revision") for reply in replies), "no revision")


async def _keeps_deadlines(stage: Stage) -> None:
    reply = await stage.subject.owner.chat(
        "Count to a thousand.", output_tokens_max=64, headers={"x-headrace-deadline-ms": "1"}
    )
    _must(reply.status in (503, 504), f"{reply.status} where a millisecond was left")


async def _limits(stage: Stage) -> None:
    caller = stage.here.limited
    replies = [await caller.chat(TEXT, output_tokens_max=1) for _ in range(LIMITED_REQUESTS + 1)]
    *within, beyond = replies
    for reply in within:
        _ok(reply)
    left = [reply.headers.get("x-ratelimit-remaining-requests") for reply in within]
    _must(left[-1:] == ["0"] and None not in left, f"x-ratelimit-remaining-requests {left}")
    _must(
        within[0].headers.get("x-ratelimit-limit-requests") == str(LIMITED_REQUESTS),
        "x-ratelimit-limit-requests",
    )
    _refused(beyond, 429, "rate_limited", is_ours=True)
    _must(beyond.headers.get("retry-after", "").isdecimal(), "no retry-after")
    _must(beyond.headers.get("x-should-retry") == "true", "no x-should-retry")


async def _revokes(stage: Stage) -> None:
    """T39: a key that is revoked opens nothing within two seconds."""
    running = stage.here.running
    owner = stage.subject.owner
    key = (await running.command("keys", "create", "--tenant", owner.tenant)).strip()
    await _until(stage, lambda: _status(owner, key), 200, what="a new key")
    await running.command("keys", "revoke", key.split("_")[2])
    await _until(stage, lambda: _status(owner, key), 401, what="a revoked key")


async def _status(caller: Caller, key: str) -> int:
    return (await caller.ask("GET", MODELS, key=key)).status


async def _until(stage: Stage, ask: Callable[[], Awaitable[int]], wanted: int, *, what: str) -> None:
    limit_s = stage.bounds.revoked_s
    until_s = stage.clock.now_s() + limit_s
    while (status := await ask()) != wanted:
        _must(stage.clock.now_s() < until_s, f"{what} is answered {status} after {limit_s:g} s")
        await asyncio.sleep(0.05)


async def _shows_life(stage: Stage) -> None:
    for path in ("/livez", "/readyz"):
        _ok(await stage.subject.owner.ask("GET", path, key=""))


CHECKS = (
    Check("models are listed", _lists_models),
    Check("a whole answer has the shape of OpenAI's", _answers_whole),
    Check("a text completion too", _answers_completions),
    Check("a stream is made of chunks and ends with [DONE]", _streams),
    Check("a stream tells its usage at the end where that is asked for", _streams_usage),
    Check("a body that isn't right is refused by name", _refuses_bad_bodies),
    Check("what isn't there is 404", _refuses_unknown),
    Check("without a key nothing is answered", _refuses_strangers),
    Check("each request has a name and a revision", _names_requests, is_ours=True),
    Check("a deadline is kept", _keeps_deadlines, is_ours=True),
    Check("limits are told and kept", _limits, is_ours=True),
    Check("a revoked key opens nothing", _revokes, is_ours=True),
    Check("signs of life need no key", _shows_life, is_ours=True),
)
