"""Which replicas go when there are too many? What does the least work, and of what works, what disturbs the fewest."""

from collections.abc import Iterable

from headrace.policies.autoscale_signals import ReplicaView


def removal_order(replicas: Iterable[ReplicaView], *, aged: str | None = None) -> tuple[str, ...]:
    """All of them, the one to go first in front.

    Those that are not ready go before all others, because nobody is served by them: stuck ones first, then the youngest,
    which has come least far. Of the ready ones those without conversations, with the least in progress, and the oldest. A
    ready one is only ever drained: its requests end before it does.

    Args:
        aged: A replica whose successor is ready: it goes before anything else.
    """

    def rank(replica: ReplicaView) -> tuple[bool, bool, bool, bool, int, int, float, str]:
        is_ready = replica.ready_s is not None
        return (
            replica.id != aged,
            is_ready,
            is_ready or not replica.is_stuck,
            replica.sessions > 0,
            replica.in_flight,
            replica.sessions,
            replica.launched_s if is_ready else -replica.launched_s,
            replica.id,
        )

    return tuple(replica.id for replica in sorted(replicas, key=rank))
