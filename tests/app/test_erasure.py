"""What is left of a tenant that was erased while its service runs: the books, a receipt, and nobody's name."""

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from headrace.stores.opening import open_database
from tests.edge.gathering import hits, of_files
from tests.support.provider import Provider, provider, wait_until
from tests.support.scripted import scripted_engine

pytestmark = pytest.mark.slow

ANNA, BERT = "anna-4711@example.org", "bert-0815@example.org"


@pytest.fixture(params=[1, 2], ids=["alone", "workers"])
def service(request: pytest.FixtureRequest) -> Iterator[Provider]:
    with scripted_engine(slots=64) as engine:
        arguments = ["--workers", str(request.param)]
        with provider(upstreams=[engine.url], arguments=arguments) as running:
            yield running


def key_of(running: Provider, user: str) -> str:
    made = running.cli("keys", "create", "--tenant", "acme", "--name", f"laptop of {user}", "--user", user)
    key = made.stdout.strip()
    wait_until(lambda: running.get("/v1/models", key=key)[0] == 200, what="the key")
    return key


def replays(running: Provider, key: str) -> bool:
    status, headers, _ = running.chat(key, headers={"idempotency-key": "once"})
    assert status == 200
    return "x-headrace-idempotent-replay" in headers


def test_an_erased_tenant_leaves_the_books_and_no_name(service: Provider) -> None:
    """Keys that worked are refused; kept answers are gone even for a new tenant of that name; the receipt holds."""
    service.cli("tenants", "create", "acme", "--organization", "acme-corp")
    keys = {user: key_of(service, user) for user in (ANNA, BERT)}
    other = service.key("other")
    assert [replays(service, keys[ANNA]) for _ in range(2)] == [False, True]
    assert [replays(service, other) for _ in range(2)] == [False, True]
    for _ in range(2):
        assert service.chat(keys[BERT])[0] == 200
    wait_until(lambda: len(service.usage("--tenant", "acme")) == 3, what="the records")
    before = {row["request_id"]: row for row in service.usage("--tenant", "acme")}

    receipt: dict[str, Any] = json.loads(service.cli("tenants", "erase", "acme").stdout)
    for key in keys.values():
        assert service.get("/v1/models", key=key)[0] == 401
    assert (receipt["tenant"], receipt["organization"]) == ("acme", "acme-corp")
    assert receipt["erased"] == {
        "tenants": 1, "keys": 2, "key_names": 2, "key_users": 2, "key_uses": receipt["erased"]["key_uses"],
        "users_in_usage_records": 2, "usage_records_without_user": 3,
    }  # fmt: skip
    assert {each["what"]: each["count"] for each in receipt["kept"]}["usage_records"] == 3
    assert service.cli("audit", "verify", "--head", receipt["head"]).returncode == 0

    with closing(open_database(service.data, must_exist=True)) as database:
        rows = database.rows(
            'SELECT "user", count(*) FROM usage WHERE tenant = ? GROUP BY 1 ORDER BY 2', ("acme",)
        )
        named = database.rows("SELECT count(*) FROM api_key WHERE tenant = ?", ("acme",))
    assert [count for _, count in rows] == [1, 2]
    assert all(user.startswith("erased-") for user, _ in rows)
    assert named == [(0,)]
    after = {row["request_id"]: {**row, "user": None} for row in service.usage("--tenant", "acme")}
    assert after == {name: {**row, "user": None} for name, row in before.items()}

    service.cli("tenants", "create", "acme")
    assert not replays(service, service.key("acme"))
    assert replays(service, other), "another tenant's are where they were"
    # In the database it stands in the audit log, and a journal is written over; both are what privacy.md says.
    books = ("headrace.db", "run/journal")
    left = {where: text for where, text in of_files(service.data).items() if not where.startswith(books)}
    assert hits(left, {user: user.encode() for user in (ANNA, BERT)}) == []


def test_an_answer_is_kept_no_longer_than_was_agreed(service: Provider) -> None:
    """Retention 0: the same work is refused once it is done, and never done twice; another tenant's answer is kept."""
    service.cli("tenants", "create", "acme", "--retention", "0")
    key, other = service.key("acme"), service.key("other")
    assert not replays(service, key)
    status, _, body = service.chat(key, headers={"idempotency-key": "once"})
    assert (status, "kept no longer" in json.loads(body)["error"]["message"]) == (400, True)
    assert [replays(service, other) for _ in range(2)] == [False, True]
    service.cli("tenants", "set", "acme", "--retention", "1")
    wait_until(lambda: service.chat(key, headers={"idempotency-key": "probe"})[0] == 200, what="the change")

    def asked_again() -> int:
        return service.chat(key, headers={"idempotency-key": "again"})[0]

    assert asked_again() == 200
    wait_until(lambda: asked_again() == 400, what="its time to be over")


def test_nothing_is_erased_of_whom_nobody_knows(service: Provider) -> None:
    refused = service.cli("tenants", "erase", "nobody", check=False)
    assert (refused.returncode, "no tenant `nobody`" in refused.stderr) == (2, True)
