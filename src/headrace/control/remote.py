"""A server that others run, as a replica of a deployment: asked for its models again and again, neither started nor ended."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from headrace.control.engine_spec import EngineSpec
from headrace.control.launches import Launches
from headrace.control.probes import OfferedModel
from headrace.control.status import ReplicaStatus
from headrace.control.upstreams import Remembered, Upstream, UpstreamLimits, UpstreamWatch
from headrace.core.fleet import Deployment, ReplicaState
from headrace.core.ids import ReplicaId

REMOTE_SLOTS = 64
AGAIN_S = 1.0


class RemoteReplica:
    """Offers the server's model of the deployment's name, or the only one that it has.

    Args:
        launches: Numbers this watch of the server, as it numbers launches of engines.
        before: As it is offered at this moment, with this replica alone; it stays so until the server says otherwise.
        changed: Called after each change that `status` or `deployment` shows.
        found: Called when it answers after it had not answered.
    """

    def __init__(
        self,
        spec: EngineSpec,
        server: Upstream,
        *,
        id: ReplicaId,
        launches: Launches,
        before: Deployment | None,
        changed: Callable[[ReplicaStatus], None],
        found: Callable[[ReplicaId], None],
        limits: UpstreamLimits | None = None,
    ) -> None:
        self.id = id
        self.slots = spec.slots
        self._spec = spec
        self._launches = launches
        self._changed = changed
        self._generation = 0 if before is None else before.replicas[0].generation
        self._is_known = before is not None
        self._problem = ""
        address = server.address()  # a URL that can't be served is refused here
        self._watch = UpstreamWatch(
            server,
            limits=limits or UpstreamLimits(),
            changed=lambda _: self._changed(self.status()),
            found=lambda _: found(id),
            remembered={} if before is None else {UpstreamWatch.id_of(address): _remembered(before)},
        )

    async def run(self) -> None:
        """Until cancelled."""
        while not self._is_known:
            try:
                self._generation, _ = await self._launches.next(self.id)
            except OSError as error:  # a full disk must not end the controller
                self._problem = f"its number can't be kept: {error}"
                self._changed(self.status())
                await asyncio.sleep(AGAIN_S)
            else:
                self._is_known, self._problem = True, ""
        await self._watch.run()

    def leave(self) -> None:
        """Nothing of it is ours to end."""

    def end(self) -> None:
        """Nothing of it is ours to end."""

    def status(self) -> ReplicaStatus:
        seen = self._watch.statuses()[0]
        offer = self._offer()
        state, reason = seen.state, seen.reason
        if self._problem:
            state, reason = ReplicaState.FAILED, self._problem
        elif state is ReplicaState.READY and offer is None:
            listed = ", ".join(each.deployment for each in self._watch.statuses()) or "nothing"
            state, reason = ReplicaState.FAILED, f"it offers {listed}, and not {self._spec.deployment}"
        return ReplicaStatus(
            deployment=self._spec.deployment,
            replica=self.id,
            generation=self._generation + seen.generation,
            state=state,
            reason=reason,
            restarts=seen.generation,
            version=self._spec.version,
            traits=None if offer is None else offer.replicas[0].traits,
            location=self._spec.location,
        )

    def deployment(self) -> Deployment:
        """What it offers, under the deployment's name; without a replica while it is out."""
        spec, offer = self._spec, self._offer()
        if offer is None:
            return Deployment(
                name=spec.deployment,
                upstream_model=spec.deployment,
                tasks=frozenset({spec.task}),
                revision=spec.revision(),
                locations=(spec.location,),
                version=spec.version,
            )
        (replica,) = offer.replicas
        return replace(
            offer,
            name=spec.deployment,
            tasks=frozenset({spec.task}),
            revision=spec.revision(),
            replicas=(replace(replica, id=self.id, generation=self._generation + replica.generation),),
            locations=(spec.location,),
            version=spec.version,
            owner="headrace",
        )

    def _offer(self) -> Deployment | None:
        offers = self._watch.offers()
        if len(offers) == 1:
            return offers[0]
        return next((each for each in offers if each.upstream_model == self._spec.deployment), None)


def _remembered(before: Deployment) -> Remembered:
    """What a watch must have known of its server, to have offered that."""
    model = OfferedModel(
        before.upstream_model,
        before.owner,
        before.created_s,
        before.context_tokens,
        before.vocabulary_tokens,
        isolates_callers=before.replicas[0].traits.name == "headrace",
    )
    return Remembered((model,), ReplicaState.READY, "", 0, has_ended=False)
