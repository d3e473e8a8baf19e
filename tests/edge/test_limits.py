"""A tenant's limits: what is refused, with which words, and that waiting as told is enough."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.main import main
from headrace.core.clock import ManualClock
from headrace.core.errors import ConcurrencyLimited, RateLimited
from headrace.core.ids import KeyId, TenantId
from headrace.core.tenant import Principal, TenantLimits
from headrace.policies.limits import ROUNDING_S, TenantLimiter
from tests.edge.conftest import Edge, running_edge
from tests.support.provider import wait_until

# The policy, on a clock of its own


def caller(*, per_minute: int = 0, burst: int = 1, concurrency: int = 0, tenant: str = "a") -> Principal:
    return Principal(TenantId(tenant), KeyId("k"), TenantLimits(per_minute, burst, concurrency))


RATES = st.integers(1, 100_000)
BURSTS = st.integers(1, 500)
PAUSES = st.lists(st.floats(0, 120, allow_nan=False), max_size=80)


@given(per_minute=RATES, burst=BURSTS, pauses=PAUSES)
def test_never_more_than_burst_and_rate_admit(per_minute: int, burst: int, pauses: list[float]) -> None:
    """In every window, not only from the start: at most burst + rate * t."""
    clock, limiter, who = ManualClock(), TenantLimiter(), caller(per_minute=per_minute, burst=burst)
    admitted: list[float] = []
    for pause_s in pauses:
        clock.advance(pause_s)
        for _ in range(3):
            try:
                limiter.take(who, now_s=clock.now_s())
                admitted.append(clock.now_s())
            except RateLimited:
                break
    for first, start_s in enumerate(admitted):
        for last in range(first, len(admitted)):
            window_s = admitted[last] - start_s
            assert last - first + 1 <= burst + window_s * per_minute / 60 + 1e-6


@given(per_minute=RATES, burst=BURSTS, pauses=PAUSES)
def test_who_waits_as_told_is_admitted(per_minute: int, burst: int, pauses: list[float]) -> None:
    """Exactly retry_after_s, to the last bit; and a little less is not enough."""
    clock, limiter, who = ManualClock(), TenantLimiter(), caller(per_minute=per_minute, burst=burst)
    for pause_s in pauses:
        clock.advance(pause_s)
        wait_s = None
        while wait_s is None:
            try:
                limiter.take(who, now_s=clock.now_s())
            except RateLimited as refused:
                wait_s = refused.retry_after_s
        assert 0 < wait_s <= 60 / per_minute + 1e-5
        with pytest.raises(RateLimited):
            limiter.take(who, now_s=clock.now_s() + (wait_s - ROUNDING_S) * 0.9)
        clock.advance(wait_s)
        limiter.take(who, now_s=clock.now_s())


def test_a_refused_request_costs_no_token_of_the_bucket() -> None:
    clock, limiter, who = ManualClock(), TenantLimiter(), caller(per_minute=60, burst=1)
    limiter.take(who, now_s=clock.now_s())
    for _ in range(1000):
        with pytest.raises(RateLimited):
            limiter.take(who, now_s=clock.now_s())
    clock.advance(1.0)
    limiter.take(who, now_s=clock.now_s())


@given(steps=st.lists(st.booleans(), max_size=60), most=st.integers(1, 5))
def test_in_progress_never_exceeds_its_limit_and_returns_to_zero(steps: list[bool], most: int) -> None:
    limiter, who, inside = TenantLimiter(), caller(concurrency=most), 0
    for comes in steps:
        if comes:
            try:
                limiter.take(who, now_s=0.0)
                inside += 1
            except ConcurrencyLimited:
                assert inside == most
        elif inside:
            limiter.release(who.tenant)
            inside -= 1
        assert limiter.in_progress(who.tenant) == inside <= most
    for _ in range(inside):
        limiter.release(who.tenant)
    assert limiter.in_progress(who.tenant) == 0


def test_a_clock_reading_from_the_past_gives_nothing_away() -> None:
    """T32."""
    limiter, who = TenantLimiter(), caller(per_minute=60, burst=1)
    limiter.take(who, now_s=100.0)
    for now_s in (50.0, 100.0, 0.0, 100.9):
        with pytest.raises(RateLimited):
            limiter.take(who, now_s=now_s)
    limiter.take(who, now_s=101.0)


@given(pauses=PAUSES, per_minute=RATES, burst=BURSTS)
def test_the_view_is_within_the_bucket(pauses: list[float], per_minute: int, burst: int) -> None:
    clock, limiter, who = ManualClock(), TenantLimiter(), caller(per_minute=per_minute, burst=burst)
    for pause_s in pauses:
        clock.advance(pause_s)
        try:
            limiter.take(who, now_s=clock.now_s())
        except RateLimited:
            pass
        view = limiter.view(who, now_s=clock.now_s())
        assert view is not None
        assert 0 <= view.remaining <= view.limit == burst
        assert 0 <= view.reset_s <= burst * 60 / per_minute + 1e-6


# The same through HTTP


@pytest.fixture(scope="module")
def limited() -> Iterator[Edge]:
    with running_edge(slots=8) as running:
        yield running


@pytest.mark.slow
def test_a_spent_rate_is_a_429_with_everything_that_a_client_needs(limited: Edge) -> None:
    key = limited.service.key("brisk", requests_per_minute=2, requests_burst=2)
    first, second, third = (limited.service.chat(key) for _ in range(3))
    assert [first[0], second[0], third[0]] == [200, 200, 429]
    assert (first[1]["x-ratelimit-limit-requests"], first[1]["x-ratelimit-remaining-requests"]) == ("2", "1")
    assert first[1]["x-ratelimit-reset-requests"].endswith("s")
    headers = third[1]
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-headrace-reason"] == "rate_limited"
    assert headers["x-should-retry"] == "true"
    assert 1 <= int(headers["retry-after"]) <= 30
    assert limited.service.chat(limited.key)[0] == 200  # others are served meanwhile


@pytest.mark.slow
def test_who_waits_retry_after_is_admitted(limited: Edge) -> None:
    key = limited.service.key("patient", requests_per_minute=60, requests_burst=1)
    for _ in range(2):
        while (refused := limited.service.chat(key))[0] == 200:
            pass
        time.sleep(int(refused[1]["retry-after"]))  # what is promised is that this wait is enough
        assert limited.service.chat(key)[0] == 200


@pytest.mark.slow
def test_the_openai_client_waits_by_itself_and_succeeds(limited: Edge) -> None:
    key = limited.service.key("official", requests_per_minute=60, requests_burst=1)
    with openai.OpenAI(base_url=limited.service.url, api_key=key, max_retries=3) as client:
        for _ in range(3):
            answer = client.chat.completions.create(
                model="scripted", messages=[{"role": "user", "content": "hi"}]
            )
            assert answer.choices[0].finish_reason == "stop"
    assert limited.service.metric("headrace_refusals_total", code="rate_limited") > 0


@pytest.mark.slow
def test_the_openai_client_sees_typed_errors(limited: Edge) -> None:
    key = limited.service.key("typed", requests_per_minute=1, requests_burst=1)
    hello: list[openai.types.chat.ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
    with openai.OpenAI(base_url=limited.service.url, api_key=key, max_retries=0) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            client.chat.completions.create(model="scripted", messages=hello, temperature=9)
        assert (bad.value.code, bad.value.param, bad.value.type) == (
            "invalid_request", "temperature", "invalid_request_error"
        )  # fmt: skip
        assert bad.value.request_id
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("nothing")
        client.chat.completions.create(model="scripted", messages=hello)
        with pytest.raises(openai.RateLimitError):
            client.chat.completions.create(model="scripted", messages=hello)
    with openai.OpenAI(base_url=limited.service.url, api_key="wrong", max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            client.models.list()


@pytest.mark.slow
def test_a_request_that_is_refused_for_its_body_costs_no_token(limited: Edge) -> None:
    key = limited.service.key("clumsy", requests_per_minute=1, requests_burst=1)
    for _ in range(5):
        assert limited.service.chat(key, temperature=9)[0] == 400
    assert limited.service.get("/v1/models", key=key)[0] == 200
    assert limited.service.chat(key)[0] == 200
    assert limited.service.chat(key)[0] == 429


def test_requests_in_progress_are_bounded_and_room_returns(limited: Edge) -> None:
    key = limited.service.key("wide", requests_per_minute=0, concurrency=2)
    limited.engine.set_faults("ttft:60000@1,ttft:60000@2")
    held = [limited.service.connect() for _ in range(2)]
    body = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}]}'
    running = limited.engine.stats()["running"]
    for connection in held:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    limited.engine.wait_for_stats(lambda stats: stats["running"] == running + 2)
    status, headers, _ = limited.service.chat(key)
    assert (status, headers["x-headrace-reason"], headers["retry-after"]) == (429, "concurrency_limited", "1")
    assert headers["x-should-retry"] == "true"
    assert limited.service.chat(limited.key)[0] == 200
    held.pop().close()
    wait_until(lambda: limited.service.chat(key)[0] == 200, what="room for one")
    held.pop().close()
    limited.engine.wait_for_stats(lambda stats: stats["running"] == 0)
    limited.engine.set_faults("")


@pytest.mark.slow
def test_a_crowd_of_one_tenant_never_runs_more_than_agreed(limited: Edge) -> None:
    """Forty at once, three allowed: the engine never sees four, and nothing is left over."""
    key = limited.service.key("crowd", requests_per_minute=0, concurrency=3)
    limited.engine.set_faults("ttft:100")
    statuses: list[int] = []
    threads = [
        threading.Thread(target=lambda: statuses.append(limited.service.chat(key)[0])) for _ in range(40)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(statuses) <= {200, 429}
    assert statuses.count(200) >= 3
    limited.engine.set_faults("")
    assert limited.service.status()["in_flight"] == 0
    assert limited.service.chat(key)[0] == 200


@pytest.mark.slow
def test_changed_limits_are_in_force_within_two_seconds(limited: Edge) -> None:
    """T55, T39."""
    key = limited.service.key("promoted", requests_per_minute=1, requests_burst=1)
    assert [limited.service.chat(key)[0] for _ in range(2)] == [200, 429]
    limited.service.cli("tenants", "set", "promoted", "--requests-per-minute", "0")
    changed_s = time.monotonic()
    wait_until(lambda: limited.service.chat(key)[0] == 200, what="the new limit")
    assert time.monotonic() - changed_s < 10.0  # 2 s, and a machine that others use


@pytest.mark.slow
def test_tokens_are_taken_for_the_longest_answer_and_what_was_not_used_comes_back(limited: Edge) -> None:
    """The headers show what is held while the answer is made; the next request finds the rest again."""
    key = limited.service.key("thrifty", tokens_per_minute=60, tokens_burst=1000)
    seen = []
    for _ in range(4):
        status, headers, body = limited.service.chat(key, max_tokens=900)
        assert status == 200
        used = json.loads(body)["usage"]["total_tokens"]
        seen.append((int(headers["x-ratelimit-remaining-tokens"]), used))
        assert headers["x-ratelimit-limit-tokens"] == "1000"
        assert headers["x-ratelimit-reset-tokens"].endswith("s")
    assert seen[0][0] < 100
    # From the first to the last only what was really used is missing, and a token came each second.
    spent = sum(used for _, used in seen[:-1])
    assert seen[0][0] - spent <= seen[-1][0] <= seen[0][0] - spent + 30
    status, headers, body = limited.service.chat(key, max_tokens=1000)
    assert (status, json.loads(body)["error"]["param"]) == (400, "max_tokens")
    assert limited.service.metric("headrace_refusals_total", reason="tokens_over_limit") == 1
    assert headers["x-should-retry"] == "false"
    limited.service.cli("tenants", "set", "thrifty", "--tokens-per-minute", "1", "--tokens-burst", "950")
    while limited.service.chat(key, max_tokens=900)[0] == 200:
        pass
    status, headers, body = limited.service.chat(key, max_tokens=900)
    assert (status, headers["x-headrace-reason"]) == (429, "rate_limited")
    assert int(headers["retry-after"]) > 1
    assert "1 tokens a minute" in json.loads(body)["error"]["message"]
    assert limited.service.metric("headrace_refusals_total", reason="tokens_limited") >= 2


@pytest.mark.slow
def test_a_models_limit_holds_beside_the_tenants_for_that_model_alone(limited: Edge) -> None:
    key = limited.service.key("choosy", requests_per_minute=600, requests_burst=50)
    text = "scripted:requests_per_minute=1,requests_burst=2 other:concurrency_max=1"
    limited.service.cli("tenants", "set", "choosy", "--model-limits", text)
    answers = [limited.service.chat(key) for _ in range(3)]
    assert [status for status, _, _ in answers] == [200, 200, 429]
    assert answers[0][1]["x-ratelimit-limit-requests"] == "2"  # the tightest
    assert "requests a minute for this model" in json.loads(answers[2][2])["error"]["message"]
    assert limited.service.metric("headrace_refusals_total", reason="model_rate_limited") == 1
    listed = json.loads(limited.service.cli("tenants", "list", "--json").stdout)
    [tenant] = [row for row in listed if row["tenant"] == "choosy"]
    assert tenant["model_limits"]["other"] == {"concurrency_max": 1}
    limited.service.cli("tenants", "set", "choosy", "--model-limits", "none")
    assert limited.service.chat(key)[1]["x-ratelimit-limit-requests"] == "50"


@pytest.mark.slow
def test_a_shadow_limit_refuses_nothing_and_says_what_it_would_have_refused(limited: Edge) -> None:
    key = limited.service.key("tried", requests_per_minute=0)
    limited.service.cli("tenants", "set", "tried", "--shadow", "requests_per_minute=1,requests_burst=2")
    judged = limited.service.metric("headrace_shadow_requests_total")
    refused = limited.service.metric("headrace_shadow_requests_total", verdict="rate_limited")
    assert [limited.service.chat(key)[0] for _ in range(5)] == [200] * 5
    assert limited.service.metric("headrace_shadow_requests_total") == judged + 5
    assert limited.service.metric("headrace_shadow_requests_total", verdict="rate_limited") == refused + 3
    lines = [line for line in limited.service.log_lines() if line["event"] == "limit.shadow"]
    told = [(line["model"], line["reason"]) for line in lines if line["tenant"] == "tried"]
    assert told == [("scripted", "rate_limited")] * 3
    limited.service.cli("tenants", "set", "tried", "--shadow", "none")
    assert limited.service.chat(key)[0] == 200
    assert limited.service.metric("headrace_shadow_requests_total") == judged + 5


@pytest.mark.slow
def test_tenants_show_tells_what_is_agreed_what_is_left_and_what_is_on_trial(limited: Edge) -> None:
    service = limited.service
    # Rates so low that what comes back while a busy machine gets this far is not seen.
    rates = {"requests_per_minute": 1, "requests_burst": 10, "tokens_per_minute": 60, "tokens_burst": 6000}
    key = service.key("watched", concurrency=8, **rates)
    service.cli("tenants", "set", "watched", "--model-limits", "scripted:concurrency_max=4", "--weight", "3")
    service.cli("tenants", "set", "watched", "--shadow", "requests_per_minute=1,requests_burst=1")
    arguments = ("--requests-per-minute", "30", "--name", "ci")
    narrow = service.cli("keys", "create", "--tenant", "watched", *arguments).stdout.strip()
    limited.engine.set_faults("ttft:60000@1")
    running = limited.engine.stats()["running"]
    body = b'{"model":"scripted","max_tokens":500,"messages":[{"role":"user","content":"hi"}]}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: test\r\nAuthorization: Bearer {key}\r\n"
    with service.connect() as held:
        held.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        limited.engine.wait_for_stats(lambda stats: stats["running"] == running + 1)
        assert service.chat(narrow, max_tokens=20)[0] == 200
        shown = json.loads(service.cli("tenants", "show", "watched", "--json").stdout)
        text = service.cli("tenants", "show", "watched").stdout
    limited.engine.wait_for_stats(lambda stats: stats["running"] == running)
    limited.engine.set_faults("")
    levels = {(each["level"], each["name"]): each for each in shown["use"]["levels"]}
    tenant, model = levels["tenant", "watched"], levels["model", "scripted"]
    assert (tenant["in_progress"], model["in_progress"]) == (1, 1)
    assert tenant["requests"]["limit"] == 10
    assert 8 <= tenant["requests"]["remaining"] <= 9
    assert 5400 <= tenant["tokens"]["remaining"] <= 5500  # what is held for the one in progress is gone
    assert model["requests"] is model["tokens"] is None
    key_id = narrow.split("_")[2]
    assert levels["key", key_id]["requests"]["limit"] == 60
    assert {entry["id"]: entry["name"] for entry in shown["keys"]}[key_id] == "ci"
    assert (shown["use"]["shadow"]["requests_last_hour"], shown["use"]["shadow"]["refused_last_hour"]) == (
        2, {"rate_limited": 1},
    )  # fmt: skip
    assert "weight 3" in text
    assert "1 of 8" in text
    assert "1 of 4" in text
    assert "would have refused 1 of 2 requests in the last hour (1 rate_limited)" in text
    assert service.admin("/admin/v1/tenants/nobody/use")[0] == 404


@pytest.mark.parametrize(
    "text", ["requests_per_minute=1", "small:requests=1", "small:tokens_per_minute=-1", "small", "a:b=1,b=2"]
)
def test_limits_that_make_no_sense_are_refused_with_what_would_be_accepted(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["tenants", "create", "acme", "--model-limits", text, "--data", str(tmp_path)])
    assert "tokens_per_minute" in capsys.readouterr().err
