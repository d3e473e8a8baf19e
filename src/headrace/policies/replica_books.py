"""What is known of each replica, whichever target it serves? Its slots, what runs on it, and what this process may use of it."""

from collections.abc import Iterable, Iterator

from headrace.core.fleet import Replica
from headrace.core.ids import TargetKey
from headrace.policies.health import HealthRules
from headrace.policies.tickets import ReplicaKey, ReplicaLoad, ReplicaSlots


class ReplicaBooks:
    """State: `_retired` holds the loads of replicas that left the fleet while they had work. Such a replica may come back
    before that work ends (a probe that failed once), and its slots are not free only because of it. For the same reason
    `_leases` are kept whether or not their replicas are there.

    Attributes:
        slots: Of every replica that is offered or has work, for all of its targets.

    Args:
        workers, is_lent: As in policies/dispatch.py.
    """

    def __init__(self, health: HealthRules, *, is_adaptive: bool, workers: int, is_lent: bool) -> None:
        self._health = health
        self._is_adaptive = is_adaptive
        self._workers = workers
        self._default_lease = 0 if is_lent else None
        self._leases: dict[ReplicaKey, int] = {}
        self._retired: dict[tuple[TargetKey, ReplicaKey], ReplicaLoad] = {}
        self.slots: dict[ReplicaKey, ReplicaSlots] = {}

    def load_of(
        self,
        target: TargetKey,
        replica: Replica,
        known: dict[ReplicaKey, ReplicaLoad],
        *,
        slowly_from_s: float | None,
    ) -> ReplicaLoad:
        """Takes the replica's load out of the known or the retired ones, or makes it: it starts slowly among others."""
        key = (replica.id, replica.generation)
        shared = self.slots.get(key)
        if shared is None:
            shared = self.slots[key] = ReplicaSlots(
                replica, is_adaptive=self._is_adaptive, workers=self._workers
            )
        shared.lease = self._leases.get(key, self._default_lease)
        shared.resize(replica.slots)
        load = known.pop(key, None) or self._retired.pop((target, key), None)
        if load is None:
            load = ReplicaLoad(replica, self._health, shared)
            if slowly_from_s is not None:
                load.health.start_slowly(now_s=slowly_from_s, over_s=replica.slow_start_s)
        load.replica = replica
        return load

    def set_rules(self, health: HealthRules, offered: Iterable[ReplicaLoad], *, is_adaptive: bool) -> None:
        """What these replicas, those that still work, and all that come are judged by, and whether a limit for them is found out.
        What was found out stays as long as that is the rule."""
        is_other = is_adaptive is not self._is_adaptive
        self._health, self._is_adaptive = health, is_adaptive
        for load in (*offered, *self._retired.values()):
            load.health.go_by(health)
            if is_other:
                load.shared.set_adaptive(load.replica, is_adaptive=is_adaptive)

    def retire(self, target: TargetKey, loads: Iterable[ReplicaLoad]) -> None:
        """They serve that target no longer, but for what runs on them."""
        self._retired.update({(target, load.key): load for load in loads if load.outstanding})

    def retired(self) -> Iterator[tuple[TargetKey, ReplicaLoad]]:
        """What still runs on replicas that don't serve its target any more."""
        for (target, _), load in self._retired.items():
            yield target, load

    def offered(self, loads: Iterable[tuple[TargetKey, ReplicaLoad]]) -> None:
        """All that is offered now, by target; the slots of what is gone and idle are forgotten."""
        targets: dict[ReplicaKey, tuple[TargetKey, ...]] = {}
        for target, load in loads:
            targets[load.key] = (*targets.get(load.key, ()), target)
        for key, shared in list(self.slots.items()):
            shared.targets = targets.get(key, ())
            if not (shared.targets or shared.outstanding):
                del self.slots[key]

    def idle(self, target: TargetKey, load: ReplicaLoad) -> None:
        """Nothing runs on it for that target any more."""
        self._retired.pop((target, load.key), None)
        if not (load.shared.outstanding or load.shared.targets):
            self.slots.pop(load.key, None)

    def lend(self, key: ReplicaKey, slots: int | None) -> ReplicaSlots | None:
        """So many slots may be used from now on; None: as many as before any such call. Returns those of a known replica."""
        if slots is None:
            self._leases.pop(key, None)
        else:
            self._leases[key] = slots
        shared = self.slots.get(key)
        if shared is not None:
            shared.lease = self._default_lease if slots is None else slots
            shared.set_slots()
        return shared
