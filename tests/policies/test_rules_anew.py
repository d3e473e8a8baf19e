"""Bounds and rules that are replaced while there is work: from then on they hold, and what was said before is kept."""

from random import Random

import pytest

from headrace.core.fleet import EngineTraits, Replica
from headrace.core.ids import ReplicaId, TenantId
from headrace.core.outcome import AttemptOutcome
from headrace.policies.dispatch import Dispatcher
from headrace.policies.health import Circuit, HealthRules, ReplicaHealth
from headrace.policies.idempotency import IdempotencyTable, Known
from headrace.policies.pressure import Level, Memory, Pressure, Reading
from headrace.policies.retry import RetryBudget
from tests.policies.dispatch_rig import OURS, RULES, bounds, come, dispatcher, fleet, replica, ticket

ACME = TenantId("acme")
TOUCHY = HealthRules(failures_to_eject=1, ejection_s=1.0, ejection_max_s=2.0)


def fail(one: Dispatcher, *, now_s: float) -> Circuit | None:
    newcomer = ticket()
    assert come(one, newcomer, now_s=now_s)
    return one.give_back(newcomer, AttemptOutcome.ERRED, now_s=now_s)[0]


def test_every_replica_is_judged_by_the_new_rules_and_so_is_one_that_comes_later() -> None:
    one = dispatcher(replica("a"))
    assert fail(one, now_s=0.0) is None, "two in a row were the rule"
    one.set_rules(bounds(), TOUCHY, is_adaptive=True)
    assert fail(one, now_s=1.0) is Circuit.OPEN
    one.publish(fleet(chat=[replica("b")]), now_s=2.0)
    assert fail(one, now_s=2.0) is Circuit.OPEN


def test_a_replica_that_left_and_still_works_is_judged_by_them_when_it_is_back() -> None:
    one = dispatcher(replica("a", slots=2))
    running = ticket()
    assert come(one, running, now_s=0.0)
    one.publish(fleet(chat=[]), now_s=1.0)
    one.set_rules(bounds(), TOUCHY, is_adaptive=True)
    one.publish(fleet(chat=[replica("a", slots=2)]), now_s=2.0)
    assert one.give_back(running, AttemptOutcome.ERRED, now_s=3.0)[0] is Circuit.OPEN


def test_who_is_out_stays_out_as_long_as_was_said_and_the_next_time_by_the_new_rules() -> None:
    health = ReplicaHealth(RULES)
    for _ in range(2):
        health.asked(now_s=0.0)
        health.ended(AttemptOutcome.ERRED, started_s=0.0, is_idle=True, now_s=0.0)
    health.go_by(TOUCHY)
    assert health.is_ejected(RULES.ejection_s - 0.1)
    fresh = ReplicaHealth(RULES)
    fresh.go_by(TOUCHY)
    fresh.asked(now_s=0.0)
    fresh.ended(AttemptOutcome.ERRED, started_s=0.0, is_idle=True, now_s=0.0)
    assert fresh.ejected_until_s == TOUCHY.ejection_s


def test_who_is_on_the_way_back_is_so_for_as_long_as_was_said() -> None:
    health = ReplicaHealth(RULES)
    health.start_slowly(now_s=0.0, over_s=100.0)
    health.go_by(TOUCHY)
    assert health.weight(50.0) == 0.5


@pytest.mark.parametrize(("traits", "has_limit"), [(EngineTraits(), True), (OURS, False)])
def test_limits_that_are_found_out_come_and_go_with_the_rule_and_never_for_engines_of_ours(
    traits: EngineTraits, has_limit: bool
) -> None:
    server = Replica(ReplicaId("a"), "127.0.0.1", 1, 16, traits)
    one = Dispatcher(bounds=bounds(), health=RULES, chance=Random(1), is_adaptive=False)
    one.publish(fleet(chat=[server]), now_s=0.0)
    ((_, slots),) = one.all_slots()
    for is_adaptive in (True, True, False):
        one.set_rules(bounds(), RULES, is_adaptive=is_adaptive)
        assert (slots.limit is not None) == (is_adaptive and has_limit)
        assert slots.slots == 16


def test_a_purse_of_retries_goes_by_its_new_terms() -> None:
    budget = RetryBudget(ratio=0.0, floor_per_s=0.0, now_s=0.0)
    assert not budget.take(now_s=100.0)
    budget.set_terms(ratio=1.0, floor_per_s=0.0)
    budget.request()
    assert budget.take(now_s=100.0)
    budget.set_terms(ratio=0.0, floor_per_s=0.0)
    budget.request()
    assert not budget.take(now_s=1000.0)


def test_pressure_is_judged_by_its_new_limits() -> None:
    pressure = Pressure(lag_s_max=100.0, hold_s=1.0)
    late = Reading(3.0, (Memory(0, 100),), 0, 1000)
    for _ in range(3):
        assert pressure.judge(late, now_s=0.0).level is Level.CALM
    pressure.set_limits(lag_s_max=2.0, hold_s=1.0)
    assert pressure.judge(late, now_s=0.0).level is Level.REFUSE


def test_answers_are_kept_by_their_new_bounds_and_no_longer_than_these_say() -> None:
    table: IdempotencyTable[bytes] = IdempotencyTable(
        ttl_s=1000.0, entries_max=3, bytes_max=100, answer_bytes_max=100, size_of=len
    )
    for number in range(3):
        table.begin(ACME, b"%d" % number, digest=b"d", now_s=0.0)
        table.keep(ACME, b"%d" % number, b"answer")
    table.set_bounds(ttl_s=10.0, entries_max=2, bytes_max=10, answer_bytes_max=3, now_s=5.0)
    assert table.size[0] <= 2
    assert table.size[1] <= 10
    assert table.begin(ACME, b"2", digest=b"d", now_s=14.0) == b"answer"
    assert table.begin(ACME, b"2", digest=b"d", now_s=16.0) is Known.NEW
    table.keep(ACME, b"2", b"long")
    assert table.begin(ACME, b"2", digest=b"d", now_s=17.0) is Known.TOO_LARGE
    table.set_bounds(ttl_s=1000.0, entries_max=2, bytes_max=10, answer_bytes_max=10, now_s=18.0)
    assert table.begin(ACME, b"2", digest=b"d", now_s=27.0) is Known.NEW, "it was said to be kept until 26"
