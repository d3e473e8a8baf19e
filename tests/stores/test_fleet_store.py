"""What a controller leaves is whole, and only the newest controller writes."""

import sqlite3

import pytest

from headrace.core.clock import ManualClock
from headrace.core.ids import ReplicaId
from headrace.policies.cold_start import ColdStart
from headrace.policies.decisions import decision
from headrace.stores import fleet
from headrace.stores.database import Database, Kind
from headrace.stores.fleet import Change, DeploymentRow, FleetStore, LeaseLost, ReplicaRow
from tests.stores.conftest import Connect

CHAT = ReplicaRow(ReplicaId("chat-0"), "chat", 1, decided_s=12.5)


def started(load_s: float, *, deployment: str = "chat", digest: str = "sha256:1") -> ColdStart:
    return ColdStart(deployment, digest, "a machine", {"load": float(load_s)}, 12.0)


@pytest.fixture
def store(database: Database, clock: ManualClock) -> FleetStore:
    made = FleetStore(database, clock=clock)
    made.take_lease("first")
    return made


def test_what_was_written_is_what_the_next_controller_finds(
    store: FleetStore, connect: Connect, clock: ManualClock
) -> None:
    store.write(Change(replicas={CHAT.id: CHAT}))
    generation, token = store.next_launch(CHAT.id, failures=2)
    launched = CHAT._replace(generation=generation, token=token, failures=2)
    state = DeploymentRow("chat", 1, '{"stage": "stepping"}')
    store.write(
        Change(
            replicas={CHAT.id: CHAT._replace(is_draining=True, decided_s=15.0)},
            deployments={"chat": state},
            scales={("chat", 1): "{}", ("chat", 2): "[]"},
        )
    )
    other = FleetStore(connect(), clock=clock)
    assert other.take_lease("second") == 2
    assert other.replicas() == [launched._replace(is_draining=True, decided_s=15.0)], "the launch is known"
    assert other.deployments() == {"chat": state}
    assert other.scales() == {("chat", 1): "{}", ("chat", 2): "[]"}
    other.write(
        Change(
            replicas={launched.id: None},
            deployments={"chat": None},
            scales={("chat", 1): None},
        )
    )
    assert (other.replicas(), other.deployments(), other.scales()) == ([], {}, {("chat", 2): "[]"})


def test_a_controller_that_was_replaced_writes_nothing_any_more(
    store: FleetStore, connect: Connect, clock: ManualClock
) -> None:
    """However late it learns of it: a launch, a state and a decision are refused alike, and nothing of them stays."""
    other = FleetStore(connect(), clock=clock)
    other.take_lease("second")
    change = Change(replicas={CHAT.id: CHAT}, decisions=[decision("scale", "chat", "load_up", {}, {})])
    for write in (
        lambda: store.write(change),
        lambda: store.next_launch(CHAT.id),
        lambda: store.note_start(started(1.0)),
    ):
        with pytest.raises(LeaseLost, match=r"second has taken over \(epoch 2\)"):
            write()
    assert (other.replicas(), other.decisions(), other.starts("sha256:1")) == ([], [], [])
    lease = other.lease()
    assert lease is not None
    assert (lease.epoch, lease.holder) == (2, "second")


def test_who_never_took_the_lease_writes_nothing(database: Database, clock: ManualClock) -> None:
    assert FleetStore(database, clock=clock).lease() is None
    with pytest.raises(LeaseLost):
        FleetStore(database, clock=clock).write(Change(scales={("chat", 1): "{}"}))


def test_no_two_launches_have_a_generation_or_a_token_in_common(
    store: FleetStore, connect: Connect, clock: ManualClock
) -> None:
    """Also of different replicas, and of one that had the same id before."""
    store.write(Change(replicas={CHAT.id: CHAT}))
    first, second = store.next_launch(CHAT.id), store.next_launch(CHAT.id)
    store.write(Change(replicas={CHAT.id: None}))
    with pytest.raises(LookupError, match="no replica chat-0"):
        store.next_launch(CHAT.id)
    other = FleetStore(connect(), clock=clock)
    other.take_lease("second")
    other.write(Change(replicas={CHAT.id: CHAT}))
    third = other.next_launch(CHAT.id)
    assert first[0] < second[0] < third[0]
    assert len({token for _, token in (first, second, third)}) == 3


def test_controllers_that_never_live_long_keep_no_more_than_others(
    database: Database, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "DECISIONS_MAX", 50)
    for _ in range(20):
        one = FleetStore(database, clock=clock)
        one.take_lease("pid 1")
        one.write(Change(decisions=[decision("scale", "chat", "load_up", {}, {})] * 30))
    assert len(FleetStore(database, clock=clock).decisions(most=1000)) <= 150


def test_decisions_are_kept_as_they_were_and_the_oldest_of_each_kind_go(
    store: FleetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet, "DECISIONS_MAX", 150)
    rollout = decision("rollout", "chat", "passed", {"step": 1}, {"arms": [1]})
    store.write(Change(decisions=[rollout]))
    store.write(
        Change(
            decisions=[
                decision("scale", "chat", "load_up", {"at": at}, {"replicas": at}) for at in range(400)
            ]
        )
    )
    kept = store.decisions(most=1000)
    assert kept[0].decision == rollout
    assert 150 <= len(kept) - 1 < 250, "a few too many, until it is looked at again"
    assert bytes(kept[-1].decision.inputs) == b'{"at":399}'
    assert [each.seq for each in kept] == sorted(each.seq for each in kept)
    assert [each.decision.kind for each in store.decisions(deployment="chat", kind="rollout")] == ["rollout"]
    assert store.decisions(deployment="other") == []


def test_a_decision_cant_be_changed_afterwards(store: FleetStore, database: Database) -> None:
    if database.kind is not Kind.SQLITE:
        pytest.skip("the table is used in the data directory alone")
    store.write(Change(decisions=[decision("scale", "chat", "load_up", {}, {})]))
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        database.execute("UPDATE decision SET reason = 'another'")


def test_the_last_starts_of_a_revision_are_known(store: FleetStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "COLD_STARTS_MAX", 3)
    for load_s in range(5):
        store.note_start(started(load_s))
    store.note_start(started(9.0, deployment="other", digest="sha256:2"))
    assert [stages["load"] for stages in store.starts("sha256:1")] == [4.0, 3.0, 2.0]
    assert store.all_starts() == [
        *(started(load_s) for load_s in (2, 3, 4)),
        started(9.0, deployment="other", digest="sha256:2"),
    ]


def test_ids_are_the_lowest_that_are_free() -> None:
    assert fleet.lowest_free("chat", []) == "chat-0"
    assert fleet.lowest_free("chat", ["chat-0", "chat-2", "other-1"]) == "chat-1"
