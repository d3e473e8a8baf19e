"""What may leave the model store, and how does it leave? Whole artifacts, longest unused first, and what nobody knows of."""

from typing import NamedTuple

from headrace.core.clock import Clock
from headrace.policies import disk_budget
from headrace.policies.disk_budget import Held
from headrace.stores import sources
from headrace.stores.artifacts import ArtifactStore, Record, files_of
from headrace.stores.names import NameTable
from headrace.stores.objects import STORE_LOCK, ObjectStore
from headrace.stores.pins import AskNeeds, Needs

# What a cut transfer left is gone on with for so long.
STAGING_KEEP_S = 7 * 86400.0


class Gone(NamedTuple):
    """An artifact that left, or would."""

    uri: str
    sha256: str
    used_s: float


class Kept(NamedTuple):
    """What stayed, or would.

    Attributes:
        uri: Or the name, of what has one.
        is_needed: It would stay whatever the store may hold: somebody needs it, it has a name, or it can't be had again.
        reasons: Which deployments need it.
    """

    uri: str
    is_needed: bool
    reasons: tuple[str, ...]


class Collection(NamedTuple):
    """What a collection did, or would do.

    Attributes:
        freed_bytes: What the disk got back: artifacts, and files that no record knew of.
        held_bytes: What the store holds afterwards, transfers under way included.
    """

    gone: list[Gone]
    freed_bytes: int
    held_bytes: int
    kept: list[Kept]


class Collector:
    """Removes by the store's lock, so that a pull sees a thing whole or not at all.

    A record goes before its folder, and both before the files: a process killed in between leaves files that no record knows
    of, which the next collection takes, and never a record of what isn't there any more.
    """

    def __init__(
        self,
        objects: ObjectStore,
        artifacts: ArtifactStore,
        names: NameTable,
        *,
        clock: Clock,
        ask_needs: AskNeeds,
    ) -> None:
        self._objects = objects
        self._artifacts = artifacts
        self._names = names
        self._clock = clock
        self._ask_needs = ask_needs

    def held_bytes(self) -> int:
        """What the store holds, transfers under way included."""
        return sum(self._objects.blobs().values()) + self._objects.staged_bytes()

    def collect(self, *, bytes_max: int | None, is_trial: bool = False) -> Collection:
        """Removes what nobody knows of, and then the longest unused until the store holds no more than `bytes_max`.

        Args:
            bytes_max: None removes no artifact that is on record.
            is_trial: Changes nothing, and says what would be.
        """
        stale_bytes = self._objects.clear_stale(
            before_s=self._clock.wall_s() - STAGING_KEEP_S, is_trial=is_trial
        )
        with self._objects.lock(STORE_LOCK):
            records = {record.artifact.sha256: record for record in self._artifacts.records()}
            named = self._names.manifests()
            needs = self._ask_needs()
            held = [self._held(record, needs) for record in records.values()]
            held += [Held(name, {m.sha256: m.size_bytes}, 0.0, is_kept=True) for name, m in named.items()]
            loose_bytes = sum(self._objects.blobs().values()) - disk_budget.held_bytes(held)
            staged_bytes = self._objects.staged_bytes()
            going = []
            if bytes_max is not None:
                going = disk_budget.evicted(held, bytes_max=max(0, bytes_max - staged_bytes))
            staying = [each for each in held if each not in going]
            if not is_trial:
                for each in going:
                    self._artifacts.forget(each.id)
                self._artifacts.sweep_trees()
                self._objects.sweep({blob for each in staying for blob in each.blobs})
        evicted_bytes = disk_budget.held_bytes(held) - disk_budget.held_bytes(staying)
        return Collection(
            gone=[Gone(records[each.id].artifact.uri, each.id, each.used_s) for each in going],
            freed_bytes=stale_bytes + max(0, loose_bytes) + evicted_bytes,
            held_bytes=disk_budget.held_bytes(staying) + staged_bytes,
            kept=[
                Kept(
                    records[each.id].artifact.uri if each.id in records else each.id,
                    each.is_kept,
                    needs.get(each.id, ()),
                )
                for each in staying
            ],
        )

    def _held(self, record: Record, needs: Needs) -> Held:
        artifact = record.artifact
        return Held(
            artifact.sha256,
            {file.sha256: file.size_bytes for file in files_of(artifact)},
            self._artifacts.used_s(artifact.sha256),
            is_kept=artifact.sha256 in needs or not sources.can_be_had_again(artifact.uri),
        )
