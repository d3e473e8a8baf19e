"""Which models do the servers offer that others run, and which of these servers can be reached?"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

from headrace.control import probes
from headrace.control.status import ReplicaStatus
from headrace.core.errors import ConfigError, UpstreamError
from headrace.core.fleet import CHOICES_MAX, Deployment, EngineTraits, Replica, ReplicaState, Task
from headrace.core.ids import ReplicaId
from headrace.core.isolation import CacheIsolation
from headrace.core.outcome import AttemptOutcome
from headrace.engines import tls
from headrace.engines.openai_compatible import DIALECTS, dialect_of, isolated

_PATH = re.compile(r"[!-~]*")
# The revision of what others run: nobody knows what makes its answers.
UNPINNED = "unpinned"
EMBEDDING_MARKS = ("embed", "minilm", "bge-", "e5-", "gte-")


@dataclass(frozen=True, slots=True)
class Upstream:
    """A server that already runs.

    Attributes:
        url: `http://` or `https://HOST[:PORT][/PREFIX]`, with or without `/v1` at its end.
        slots: Requests that it may get at once.
        authorization: Value of the Authorization header to send, or "".
        ca_file: PEM file of the authorities that may sign its certificate; "" for those of the system.
        isolation: How its prefix cache is to be isolated; None: by what kind of server it is.
        shared_cache_reason: Why it need not be, where it isn't.
        location: Where it runs, by the operator's name for it; "" where nobody said.
    """

    url: str
    slots: int
    authorization: str = field(default="", repr=False)
    ca_file: str = ""
    isolation: CacheIsolation | None = None
    shared_cache_reason: str = ""
    location: str = ""

    def is_used_as(self, other: "Upstream") -> bool:
        """Whether connections that were opened to the other one, and what is kept of its cache, can be used for this one."""
        return replace(self, slots=other.slots, location=other.location) == other

    def traits(self, model: probes.OfferedModel) -> EngineTraits:
        """How to use the server for that model. Raises ConfigError where its cache can't be isolated as wanted."""
        dialect = DIALECTS["headrace"] if model.isolates_callers else dialect_of(model.owned_by)
        return isolated(dialect, self.isolation, reason=self.shared_cache_reason)

    def address(self) -> probes.Address:
        """Where it is. Raises ConfigError for a URL that the data path can't serve, or authorities that can't be read."""
        accepted = "accepted: http[s]://HOST[:PORT][/PREFIX][/v1]"
        try:
            parts = urlsplit(self.url)
            port = parts.port
            host = (parts.hostname or "").encode("idna").decode("ascii")
        except ValueError as error:  # also what is no host name
            raise ConfigError(f"upstream {_shown(self.url)!r}: {error}; {accepted}") from error
        is_secure = parts.scheme == "https"
        if parts.username is not None:
            raise ConfigError(
                "upstream: a URL must not hold credentials; give the key by reference (api_key)"
            )
        if self.ca_file and not is_secure:
            raise ConfigError(f"upstream {_shown(self.url)!r}: ca_file is for https:// alone")
        is_http = parts.scheme in ("http", "https")
        is_base = is_http and host and port != 0 and not parts.query and not parts.fragment
        if not is_base or not _PATH.fullmatch(parts.path):
            raise ConfigError(f"upstream {_shown(self.url)!r} is not a base URL; {accepted}")
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return probes.Address(
            host,
            port or (443 if is_secure else 80),
            path_prefix=prefix,
            authorization=self.authorization,
            tls=tls.client_context(self.ca_file, key=f"upstream {_shown(self.url)!r}: ca_file")
            if is_secure
            else None,
        )


@dataclass(frozen=True, slots=True)
class UpstreamLimits:
    """How a server is watched.

    Attributes:
        every_s, probe_s: Time between two probes; for the answer to one.
        absences_to_remove: Probes in a row without a connection, or with the word (503) that it isn't ready, after which
            it is taken out.
        answers_to_return: Good probes in a row that bring it back.
    """

    every_s: float = 5.0
    probe_s: float = 5.0
    absences_to_remove: int = 2
    answers_to_return: int = 2


@dataclass(frozen=True, slots=True)
class Remembered:
    """What a watch knows of its server, for another one that goes on in its place."""

    models: tuple[probes.OfferedModel, ...]
    state: ReplicaState
    reason: str
    generation: int
    has_ended: bool


class UpstreamWatch:
    """Asks one server for its models, again and again.

    No connection, refused or swallowed, proves that nobody is there, and 503 that it is not ready: two in a row take the
    server out, and two good probes in a row bring it back. A slow or wrong answer proves nothing: what is known stays.
    Owner of the state: the task that runs `run`. `asked` is set once the first answer, or none, has come.

    Args:
        found: Called when it answers after it had not answered.
        remembered: What an earlier watch knew of this server, or of others.
    """

    def __init__(
        self,
        upstream: Upstream,
        *,
        limits: UpstreamLimits,
        changed: Callable[[ReplicaStatus], None],
        found: Callable[[ReplicaId], None],
        remembered: Mapping[ReplicaId, Remembered],
    ) -> None:
        self.address = upstream.address()
        self.id = self.id_of(self.address)
        self.upstream = upstream
        self.asked = asyncio.Event()
        self._limits = limits
        self._changed = changed
        self._found = found
        self._models: tuple[probes.OfferedModel, ...] = ()
        self._state = ReplicaState.PENDING
        self._reason = ""
        self._absences = 0
        self._answers = 0  # in a row
        self._has_ended = False
        self._generation = 0
        if (known := remembered.get(self.id)) is not None:
            self._models, self._state, self._reason = known.models, known.state, known.reason
            self._generation, self._has_ended = known.generation, known.has_ended

    def begin_generation(self) -> None:
        """Nothing that was kept for the server as it was used before may be used any more."""
        self._generation += 1

    @staticmethod
    def id_of(address: probes.Address) -> ReplicaId:
        """What a server is known by."""
        host = f"[{address.host}]" if ":" in address.host else address.host
        return ReplicaId(f"{host}:{address.port}{address.path_prefix}")

    def remember(self) -> Remembered:
        return Remembered(self._models, self._state, self._reason, self._generation, self._has_ended)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._probe()
            self.asked.set()
            await asyncio.sleep(self._limits.every_s)

    def statuses(self) -> tuple[ReplicaStatus, ...]:
        """One for each model that it listed last; a nameless one before it listed any."""
        names = [model.id for model in self._models] or [""]
        return tuple(self._status(name) for name in names)

    @property
    def has_answered(self) -> bool:
        """Whether it is known what it lists."""
        return bool(self._models)

    @property
    def location(self) -> str:
        """Where it runs."""
        return self.upstream.location

    def lists(self, model: str) -> bool:
        """Whether that model was among those that it listed last, also if it is out now."""
        return any(each.id == model for each in self._models)

    def offers(self) -> list[Deployment]:
        """Its models, each with this server as the only replica; empty while it is out."""
        return [self._offer(model) for model in self._models] if self._state is ReplicaState.READY else []

    async def _probe(self) -> None:
        before, known = self.statuses(), self._models
        try:
            models = await probes.offered_models(self.address, timeout_s=self._limits.probe_s)
            unusable = await self._unusable(models)
        except UpstreamError as error:
            self._failed(error)
        else:
            # One that is listed twice has this server's slots once.
            self._answered(tuple({model.id: model for model in models}.values()))
            if unusable:
                self._state, self._reason, self._answers = ReplicaState.FAILED, unusable, 0
        self._tell_changes(before, known)

    async def _unusable(self, models: tuple[probes.OfferedModel, ...]) -> str:
        """Why its cache can't be isolated as the operator wants; "" if it can. Raises UpstreamError."""
        try:
            traits = [self.upstream.traits(model) for model in models]
        except ConfigError as error:
            return error.message
        if any(each.partitions_slots for each in traits):
            slots, has = (
                self.upstream.slots,
                await probes.total_slots(self.address, timeout_s=self._limits.probe_s),
            )
            if slots > has:  # for a number that it doesn't have it takes any slot, also one of another tenant
                return f'cache_isolation = "slots": `slots` is {slots}, and the server has {has}'
        return ""

    def _failed(self, error: UpstreamError) -> None:
        self._answers = 0
        self._reason = error.message
        is_absent = error.reason in (AttemptOutcome.UNREACHABLE.value, AttemptOutcome.BUSY.value)
        self._absences = self._absences + 1 if is_absent else 0
        # Packets that vanish say nothing of the process; a refusal and a process that is not ready yet do.
        self._has_ended |= is_absent and not isinstance(error.__cause__, TimeoutError)
        if self._absences >= self._limits.absences_to_remove:
            self._state = ReplicaState.FAILED

    def _answered(self, models: tuple[probes.OfferedModel, ...]) -> None:
        if not self._answers and self._reason:
            self._found(self.id)
        self._absences = 0
        self._answers += 1
        self._models = models
        if self._state is ReplicaState.FAILED:
            if self._answers < self._limits.answers_to_return:
                return
            # Another process inherits neither health nor connections; the same one keeps them, and the count of what
            # still runs on it.
            self._generation += self._has_ended
        self._has_ended = False
        self._reason = ""
        self._state = ReplicaState.READY

    def _tell_changes(
        self, before: tuple[ReplicaStatus, ...], known: tuple[probes.OfferedModel, ...]
    ) -> None:
        after = self.statuses()
        listed = {status.deployment for status in after}
        changes = [status for status in after if status not in before]
        changes += [
            replace(status, state=ReplicaState.STOPPED, reason="no longer listed")
            for status in before
            if status.deployment and status.deployment not in listed
        ]
        if not changes and [_timeless(model) for model in known] != [
            _timeless(model) for model in self._models
        ]:
            changes = [after[0]]  # the same models, offered otherwise
        for status in changes:
            self._changed(status)

    def _status(self, model: str) -> ReplicaStatus:
        return ReplicaStatus(
            deployment=model,
            replica=self.id,
            generation=self._generation,
            state=self._state,
            reason=self._reason,
            restarts=self._generation,
            traits=self._known_traits(model),
            location=self.upstream.location,
        )

    def _known_traits(self, model: str) -> EngineTraits | None:
        """How that model's cache is isolated, for those who ask; None while nothing can be said."""
        offered = next((each for each in self._models if each.id == model), None)
        if offered is None or self._state is not ReplicaState.READY:
            return None
        return self.upstream.traits(offered)

    def _offer(self, model: probes.OfferedModel) -> Deployment:
        traits = self.upstream.traits(model)
        replica = Replica(
            id=self.id,
            host=self.address.host,
            port=self.address.port,
            slots=self.upstream.slots,
            traits=traits,
            path_prefix=self.address.path_prefix,
            authorization=self.address.authorization,
            generation=self._generation,
            is_secure=self.address.tls is not None,
            ca_file=self.upstream.ca_file,
            location=self.upstream.location,
        )
        return Deployment(
            name=model.id,
            upstream_model=model.id,
            tasks=tasks_of(model.id),
            revision=UNPINNED,
            replicas=(replica,),
            context_tokens=model.context_tokens,
            vocabulary_tokens=model.vocabulary_tokens,
            takes_token_ids=traits.isolation is not CacheIsolation.PROMPT,
            # An engine spreads several choices over slots of its own choosing, past our partition.
            choices_max=1 if traits.partitions_slots else CHOICES_MAX,
            created_s=model.created_s,
            owner=model.owned_by or "upstream",
        )


_SECRET_PARTS = re.compile(r"//[^/?#]*@|[?#].*", re.DOTALL)


def _shown(url: str) -> str:
    """A URL as it may be told to people: keys are passed in queries, and passwords before an `@`."""
    return _SECRET_PARTS.sub(lambda part: "//...@" if part[0].startswith("//") else part[0][0] + "...", url)


def _timeless(model: probes.OfferedModel) -> probes.OfferedModel:
    """All of it but the time, which some servers make up anew for each answer."""
    return replace(model, created_s=0)


def tasks_of(model: str) -> frozenset[Task]:
    """What a model of that name can do: embeddings if its name says so, else both.

    A list of models doesn't tell, so a wrong guess is left to the server, which refuses what it can't do.
    """
    name = model.lower()
    if any(mark in name for mark in EMBEDDING_MARKS):
        return frozenset({Task.EMBEDDINGS})
    return frozenset({Task.CHAT, Task.EMBEDDINGS})


def joined(offers: Iterable[Deployment]) -> dict[str, Deployment]:
    """Offers of the same name as one deployment: the replicas of all, and only the context and tokens that each of them has."""
    found: dict[str, Deployment] = {}
    for offer in offers:
        first = found.get(offer.name)
        if first is None:
            found[offer.name] = offer
            continue
        found[offer.name] = replace(
            first,
            replicas=first.replicas + offer.replicas,
            takes_token_ids=first.takes_token_ids and offer.takes_token_ids,
            choices_max=min(first.choices_max, offer.choices_max),
            context_tokens=_least_known(first.context_tokens, offer.context_tokens),
            vocabulary_tokens=_least_known(first.vocabulary_tokens, offer.vocabulary_tokens),
        )
    return found


def _least_known(*tokens: int) -> int:
    return min(filter(None, tokens), default=0)
