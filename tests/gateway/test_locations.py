"""A tenant's requests run where it was agreed and nowhere else, whatever fails: engines in two places, and two workers."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import ScriptedEngine, scripted_engine

pytestmark = pytest.mark.slow

CONFIG = """
[server]
location = "us"
workers = 2
[tenant_defaults]
requests_per_minute = 0
[request]
attempts_max = 3
retry_ratio = 1.0
[[upstreams]]
url = "{eu}"
location = "eu"
[[upstreams]]
url = "{us}"
"""


@contextmanager
def two_places() -> Iterator[tuple[Provider, ScriptedEngine, ScriptedEngine]]:
    """`scripted` runs in both, `american` only where the service is."""
    with ExitStack() as stack:
        eu = stack.enter_context(scripted_engine(slots=64))
        us = stack.enter_context(scripted_engine(slots=64, models=("scripted", "american")))
        running = stack.enter_context(provider(config=CONFIG.format(eu=eu.url, us=us.url)))
        wait_until(lambda: running.metric("headrace_replica_ready") == 3, what="three models")
        yield running, eu, us


def test_a_request_runs_only_where_its_tenant_allows() -> None:
    """Also when every replica there fails, again by its name, and for a stream; who has no rule uses both places."""
    with two_places() as (running, eu, us):
        running.cli("tenants", "create", "bank", "--location", "eu")
        bank, free = running.key("bank"), running.key("free")
        for number in range(12):
            named = {"idempotency-key": f"n{number // 2}"}
            assert running.chat(bank, stream=bool(number % 4 > 1), headers=named)[0] == 200
        assert (eu.stats()["requests"], us.stats()["requests"]) == (6, 0)

        eu.set_faults("refuse")
        assert {running.chat(bank)[0] for _ in range(6)} <= {502, 503}
        eu.set_faults("error:503")
        assert {running.chat(bank)[0] for _ in range(4)} == {503}
        assert us.stats()["requests"] == 0
        assert all(running.chat(free)[0] == 200 for _ in range(4))
        assert us.stats()["requests"] == 4

        status, _, body = running.chat(bank, model="american")
        error = json.loads(body)["error"]
        assert (status, error["code"], error["param"]) == (403, "forbidden", "model")
        assert running.status()["requests"]["refused"]["location"] == 1
        assert "eu" in error["message"]
        assert not {"us", eu.url, us.url} & set(error["message"].split())
        assert running.chat(free, model="american")[0] == 200

        eu.kill()
        wait_until(lambda: running.metric("headrace_replica_ready") == 2, what="it to be noticed")
        status, headers, _ = running.chat(bank)
        assert (status, "retry-after" in headers) == (503, True)

        offers = {each["model"]: each for each in running.status()["deployments"]}
        assert (offers["scripted"]["locations"], offers["american"]["locations"]) == (["eu", "us"], ["us"])
        assert {each["location"] for each in offers["scripted"]["replicas"]} == {"eu", "us"}
        assert "locations eu\n" in running.cli("tenants", "show", "bank").stdout
