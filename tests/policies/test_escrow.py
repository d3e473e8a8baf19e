"""Claims about escrow, the decisions of both sides by themselves; both together: gateway/test_budgets_together.py."""

from headrace.core.ids import KeyId, TenantId
from headrace.core.leases import AskEscrow, EscrowId, LentEscrow, RecallEscrow
from headrace.core.quotas import BudgetKey, Period, QuotaUnit, span_of
from headrace.policies.budgets import Budget
from headrace.policies.escrow import Escrow, EscrowLender

KEY = BudgetKey(TenantId("acme"), KeyId(""), QuotaUnit.TOKENS, Period.TOTAL)
ID = EscrowId(KEY, 0)


def lender(limit: int, *, workers: int = 2) -> EscrowLender:
    return EscrowLender(Budget(KEY, span_of(Period.TOTAL, 0.0), limit), workers=workers)


def ask(needed: int, *, least: int = 0, ahead: int = 0) -> AskEscrow:
    return AskEscrow(ID, needed, least or needed, ahead)


def test_where_there_is_plenty_some_is_lent_ahead() -> None:
    tried = lender(10_000)
    ((worker, answer),) = tried.ask(1, ask(10, ahead=1_000))
    assert worker == 1
    assert answer == LentEscrow(ID, 10 + 250, left=9_740, spent=0, is_tight=False)
    assert not tried.is_waiting


def test_ahead_of_requests_a_twentieth_of_the_limit_is_lent_and_half_of_what_is_left() -> None:
    tried = lender(10_000)
    tried.budget.spent = 9_500
    ((_, answer),) = tried.ask(1, ask(100, ahead=1_000))
    assert isinstance(answer, LentEscrow)
    assert (answer.amount, answer.is_tight) == (100 + 100, True)


def test_who_lacks_waits_until_the_others_have_said_what_is_idle() -> None:
    tried = lender(100)
    assert len(tried.ask(1, ask(80))) == 1
    assert tried.ask(2, ask(50)) == [(1, RecallEscrow(ID))]
    assert tried.is_waiting
    assert tried.returned(1, 40) == [(2, LentEscrow(ID, 50, left=10, spent=0, is_tight=False))]


def test_of_too_little_as_much_is_lent_as_one_request_has_a_use_for() -> None:
    """The rest is refused, and it is known that there isn't more: who holds it all gives back by itself what is idle."""
    tried = lender(100)
    assert tried.ask(1, ask(250, least=30)) == [(1, LentEscrow(ID, 100, left=0, spent=0, is_tight=True))]
    assert tried.ask(2, ask(30)) == [(2, LentEscrow(ID, 0, left=0, spent=0, is_tight=True))]
    assert tried.returned(1, 10) == []
    assert tried.ask(2, ask(30)) == [(2, LentEscrow(ID, 0, left=10, spent=0, is_tight=False))]


def test_a_silent_worker_holds_up_nobody_and_nobody_is_told_that_there_is_no_more() -> None:
    """T54: it may hold something; so the answer isn't known."""
    tried = lender(100)
    tried.ask(1, ask(80))
    tried.ask(2, ask(50))
    ((worker, answer),) = tried.stop_waiting()
    assert isinstance(answer, LentEscrow)
    assert (worker, answer.amount, answer.is_known) == (2, 0, False)
    assert tried.ask(2, ask(50)) == [], "and it is not asked twice"
    assert [worker for worker, _ in tried.lost(1, heir=-1)] == [2], "a dead one answers nothing"


def test_what_a_dead_worker_held_is_lent_to_nobody_before_it_is_known_what_it_had_spent() -> None:
    tried = lender(100)
    tried.ask(1, ask(80))
    assert tried.lost(1, heir=-1) == []
    ((_, refused),) = tried.ask(2, ask(50))
    assert isinstance(refused, LentEscrow)
    assert (refused.amount, refused.is_known) == (0, True)
    tried.budget.spent += 30
    assert tried.buried(-1) == []
    ((_, lent),) = tried.ask(2, ask(50))
    assert isinstance(lent, LentEscrow)
    assert (lent.amount, lent.spent) == (50, 30)


def test_records_settle_what_was_lent() -> None:
    tried = lender(100)
    tried.ask(1, ask(80))
    tried.budget.spent += 20
    tried.spent(1, 20)
    assert (tried.budget.lent, tried.budget.left) == (60, 20)


def test_a_worker_reserves_from_what_it_holds() -> None:
    escrow = Escrow(ID, limit=1_000)
    assert not escrow.reserve(1)
    escrow.lent(LentEscrow(ID, 100, left=900, spent=0, is_tight=False))
    assert escrow.reserve(60)
    assert not escrow.reserve(60)
    assert escrow.idle == 40
    assert escrow.settle(60, spent=25) == 25
    assert (escrow.held, escrow.reserved) == (75, 0)
    assert escrow.withdraw(keep=100) == 0
    assert escrow.withdraw(keep=5) == 70
    assert escrow.held == 5


def test_what_an_engine_generates_beyond_its_bound_is_no_escrow() -> None:
    escrow = Escrow(ID, limit=1_000)
    escrow.lent(LentEscrow(ID, 100, left=900, spent=0, is_tight=False))
    assert escrow.reserve(60)
    assert escrow.settle(60, spent=500) == 60
    assert (escrow.held, escrow.reserved, escrow.idle) == (40, 0, 40)


def test_twice_what_a_window_took_is_expected() -> None:
    escrow = Escrow(ID, limit=1_000)
    escrow.lent(LentEscrow(ID, 100, left=900, spent=0, is_tight=False))
    assert escrow.ahead == 0
    escrow.reserve(30)
    assert escrow.ahead == 60
    escrow.close_window()
    assert escrow.ahead == 60
    escrow.close_window()
    assert escrow.ahead == 0
