"""What an end of an attempt says about the replica."""

import pytest

from headrace.core.outcome import AttemptOutcome, Outcome

FAULTS = {
    AttemptOutcome.UNREACHABLE,
    AttemptOutcome.LOST,
    AttemptOutcome.TRUNCATED,
    AttemptOutcome.STALLED,
    AttemptOutcome.ERRED,
    AttemptOutcome.GARBAGE,
}


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_only_faults_of_the_replica_speak_against_it(outcome: AttemptOutcome) -> None:
    """T25: neither a caller's bad request, nor one whose answer is too large, nor a caller who left; T26: a full replica is
    not a sick one."""
    assert outcome.is_replica_fault == (outcome in FAULTS)


def test_every_fault_of_a_replica_says_upstream_and_nothing_of_the_caller_does() -> None:
    assert all(outcome.value.startswith("upstream_") for outcome in FAULTS)
    assert {outcome.value for outcome in Outcome}.isdisjoint(outcome.value for outcome in FAULTS)
