"""Two tenants that call their requests by the same name disturb each other in nothing: our names are ours alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.gateway.rig import Rig, read_answer, read_events, request_id, rig, words
from tests.support.provider import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TIMES = 500
NAMES = "x-request-id: the-same\r\nidempotency-key: the-same-%d\r\n"
ANNE_TOKENS, BORIS_TOKENS = 3, 7


@dataclass(frozen=True)
class Asked:
    """One request as its caller saw it; `was_left` before its answer was whole."""

    tenant: str
    id: str
    was_left: bool


@pytest.fixture(scope="module")
def pairs() -> Iterator[Rig]:
    with rig({"slots": 64, "itl_ms": 1, "tokens": 2000, "owned_by": "vllm", "log": True}) as running:
        yield running


def test_answers_records_and_cancelling_stay_apart(pairs: Rig) -> None:
    """REPORTS 104, PYSEC-2026-4198: 500 times in parallel; of the first tenant's every fifth is left in the middle."""
    keys = {
        tenant: pairs.provider.key(tenant, requests_per_minute=0, concurrency=0)
        for tenant in ("anne", "boris")
    }

    def ask(tenant: str, number: int) -> Asked:
        is_left = tenant == "anne" and number % 5 == 0
        tokens = 2000 if is_left else ANNE_TOKENS if tenant == "anne" else BORIS_TOKENS
        # Idempotency-Keys are a tenant's own as well; left requests have none, or each would be done again.
        headers = "x-request-id: the-same\r\n" if is_left else NAMES % number
        with pairs.open(key=keys[tenant], headers=headers, max_tokens=tokens) as connection:
            if is_left:
                head = read_events(connection, 1).partition(b"\r\n\r\n")[0].decode()
                name = head.partition("x-request-id: ")[2].split("\r\n")[0]
                return Asked(tenant, name, was_left=True)
            answer = read_answer(connection)
        assert (answer.status, answer.text) == (200, words(tokens))
        return Asked(tenant, request_id(answer), was_left=False)

    with ThreadPoolExecutor(32) as pool:
        asked = list(pool.map(ask, ("anne", "boris") * TIMES, [n // 2 for n in range(2 * TIMES)]))

    ids = {each.id for each in asked}
    assert len(ids) == 2 * TIMES
    assert all(name.startswith("req_") for name in ids)
    records = wait_until(
        lambda: (
            {r.request_id: r for r in pairs.records() if r.request_id in ids}
            if len(pairs.records()) >= 2 * TIMES
            else None
        ),
        what="every record",
    )
    for each in asked:
        record = records[each.id]
        assert record.tenant == each.tenant
        assert record.outcome == ("cancelled" if each.was_left else "delivered")
        if not each.was_left:
            tokens = ANNE_TOKENS if each.tenant == "anne" else BORIS_TOKENS
            assert record.completion_tokens == tokens
    pairs.wait_until_idle()
    ended = {each["id"]: each["outcome"] for each in pairs.engine.executions()}
    assert ended.keys() == ids, "the engine knows them by our names, each once"
    assert len(pairs.engine.executions()) == 2 * TIMES
    assert {name for name, outcome in ended.items() if outcome == "aborted"} == {
        each.id for each in asked if each.was_left
    }
