"""What is known of a key: one request does the work, its answer is the answer, and the memory for it is bounded."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.core.ids import TenantId
from headrace.policies.idempotency import IdempotencyTable, Known

ACME, BETA = TenantId("acme"), TenantId("beta")
KEYS_MAX, BYTES_MAX, ANSWER_BYTES_MAX, TTL_S = 4, 10, 6, 100.0


def table() -> IdempotencyTable[bytes]:
    return IdempotencyTable(
        ttl_s=TTL_S, entries_max=KEYS_MAX, bytes_max=BYTES_MAX, answer_bytes_max=ANSWER_BYTES_MAX, size_of=len
    )


def test_the_answer_of_the_first_is_the_answer_of_all() -> None:
    kept = table()
    assert kept.begin(ACME, b"k", digest=b"1", now_s=0.0) is Known.NEW
    assert kept.begin(ACME, b"k", digest=b"1", now_s=1.0) is Known.RUNNING
    kept.keep(ACME, b"k", b"answer")
    assert kept.begin(ACME, b"k", digest=b"1", now_s=2.0) == b"answer"
    kept.drop(ACME, b"k")  # what every request says at its end
    assert kept.begin(ACME, b"k", digest=b"1", now_s=3.0) == b"answer"


def test_a_key_stands_for_one_request_of_one_tenant() -> None:
    kept = table()
    kept.begin(ACME, b"k", digest=b"1", now_s=0.0)
    assert kept.begin(ACME, b"k", digest=b"2", now_s=0.0) is Known.OTHER
    assert kept.begin(BETA, b"k", digest=b"2", now_s=0.0) is Known.NEW


def test_of_a_tenant_that_is_gone_nothing_is_known_and_nothing_will_be_kept() -> None:
    kept = table()
    for tenant in (ACME, BETA):
        kept.begin(tenant, b"done", digest=b"1", now_s=0.0)
        kept.keep(tenant, b"done", b"one")
    kept.begin(ACME, b"running", digest=b"1", now_s=0.0)
    kept.forget(ACME)
    kept.keep(ACME, b"running", b"two")
    assert kept.size == (1, 3)
    assert kept.begin(ACME, b"done", digest=b"2", now_s=1.0) is Known.NEW
    assert kept.begin(BETA, b"done", digest=b"1", now_s=1.0) == b"one"


def test_an_answer_is_kept_no_longer_than_was_agreed_and_its_work_is_not_done_twice() -> None:
    """Also if it comes when its time is over, and though nobody asks."""
    kept = table()
    for key, retention_s in ((b"none", 0.0), (b"some", 10.0), (b"late", 10.0)):
        assert kept.begin(ACME, key, digest=b"1", now_s=0.0, retention_s=retention_s) is Known.NEW
    assert kept.begin(ACME, b"none", digest=b"1", now_s=1.0) is Known.RUNNING
    kept.keep(ACME, b"none", b"one")
    kept.keep(ACME, b"some", b"one")
    assert kept.begin(ACME, b"none", digest=b"1", now_s=1.0) is Known.PAST
    assert kept.begin(ACME, b"some", digest=b"1", now_s=9.0) == b"one"
    kept.forget_ended(now_s=10.0)
    assert kept.size == (3, 0)
    kept.keep(ACME, b"late", b"two")
    for key in (b"some", b"late"):
        assert kept.begin(ACME, key, digest=b"1", now_s=11.0) is Known.PAST
    assert kept.begin(ACME, b"some", digest=b"2", now_s=11.0) is Known.OTHER
    assert kept.begin(ACME, b"some", digest=b"2", now_s=TTL_S) is Known.NEW


def test_nobody_keeps_an_answer_for_longer_than_its_key() -> None:
    kept = table()
    kept.begin(ACME, b"k", digest=b"1", now_s=0.0, retention_s=2 * TTL_S)
    kept.keep(ACME, b"k", b"one")
    assert kept.begin(ACME, b"k", digest=b"1", now_s=TTL_S - 1) == b"one"
    assert kept.begin(ACME, b"k", digest=b"1", now_s=TTL_S) is Known.NEW


def test_who_drops_or_is_forgotten_has_no_retention_left() -> None:
    kept = table()
    kept.begin(ACME, b"k", digest=b"1", now_s=0.0, retention_s=10.0)
    kept.begin(ACME, b"l", digest=b"1", now_s=0.0, retention_s=10.0)
    kept.drop(ACME, b"k")
    kept.forget(ACME)
    assert kept.begin(ACME, b"k", digest=b"1", now_s=1.0) is Known.NEW
    kept.keep(ACME, b"k", b"one")
    kept.forget_ended(now_s=50.0)
    assert kept.begin(ACME, b"k", digest=b"1", now_s=50.0) == b"one"


def test_who_was_not_answered_starts_anew() -> None:
    kept = table()
    kept.begin(ACME, b"k", digest=b"1", now_s=0.0)
    kept.drop(ACME, b"k")
    assert kept.begin(ACME, b"k", digest=b"2", now_s=0.0) is Known.NEW


def test_a_key_is_forgotten_after_its_time_but_never_while_its_request_runs() -> None:
    """Or its work would be done twice, and the answer to one be given for the other."""
    kept = table()
    kept.begin(ACME, b"k", digest=b"1", now_s=0.0)
    assert kept.begin(ACME, b"k", digest=b"1", now_s=TTL_S) is Known.RUNNING
    kept.keep(ACME, b"k", b"first")
    kept.keep(ACME, b"k", b"second")
    kept.keep(ACME, b"never begun", b"")
    assert kept.begin(ACME, b"k", digest=b"1", now_s=TTL_S) == b"first"
    assert kept.begin(ACME, b"k", digest=b"1", now_s=2 * TTL_S) is Known.NEW


def test_of_an_answer_that_is_too_large_only_that_is_known() -> None:
    kept = table()
    for key, answer in ((b"a", None), (b"b", b"x" * (ANSWER_BYTES_MAX + 1))):
        kept.begin(ACME, key, digest=b"1", now_s=0.0)
        kept.keep(ACME, key, answer)
        assert kept.begin(ACME, key, digest=b"1", now_s=0.0) is Known.TOO_LARGE
    assert kept.size == (2, 0)


@given(extra=st.integers(1, 20))
def test_a_flood_of_keys_pushes_out_the_oldest_that_are_done(extra: int) -> None:
    kept = table()
    kept.begin(ACME, b"running", digest=b"1", now_s=0.0)
    for number in range(KEYS_MAX + extra):
        kept.begin(ACME, b"%d" % number, digest=b"1", now_s=1.0)
        kept.keep(ACME, b"%d" % number, b"x")
    assert kept.size[0] <= KEYS_MAX
    assert kept.begin(ACME, b"running", digest=b"1", now_s=1.0) is Known.RUNNING
    assert kept.begin(ACME, b"%d" % (KEYS_MAX + extra - 1), digest=b"1", now_s=1.0) == b"x"
    assert kept.begin(ACME, b"0", digest=b"1", now_s=1.0) is Known.NEW


class Machine(RuleBasedStateMachine):
    """Any order of beginnings and ends."""

    def __init__(self) -> None:
        super().__init__()
        self.table = table()
        self.now_s = 0.0
        self.running: set[bytes] = set()

    @rule(pause_s=st.floats(0.0, 60.0))
    def passes(self, pause_s: float) -> None:
        self.now_s += pause_s

    @rule(key=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), digest=st.sampled_from([b"1", b"2"]))
    def begins(self, key: bytes, digest: bytes) -> None:
        known = self.table.begin(ACME, key, digest=digest, now_s=self.now_s)
        assert (known is Known.NEW) <= (key not in self.running), "work in progress is begun a second time"
        if known is Known.NEW:
            self.running.add(key)

    @rule(
        key=st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]), size=st.integers(0, 8), works=st.booleans()
    )
    def ends(self, key: bytes, size: int, works: bool) -> None:
        if key in self.running:
            self.running.discard(key)
            if works:
                self.table.keep(ACME, key, b"x" * size)
            self.table.drop(ACME, key)

    @invariant()
    def is_bounded(self) -> None:
        entries, size = self.table.size
        assert entries <= KEYS_MAX + len(self.running)
        assert 0 <= size <= BYTES_MAX


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_requests_in_progress_are_never_forgotten_for_room() -> None:
    """There are no more of them than requests in progress, which others bound."""
    kept = table()
    for number in range(2 * KEYS_MAX):
        assert kept.begin(ACME, b"%d" % number, digest=b"1", now_s=0.0) is Known.NEW
    for number in range(2 * KEYS_MAX):
        assert kept.begin(ACME, b"%d" % number, digest=b"1", now_s=0.0) is Known.RUNNING
