"""What does an autoscaler remember from one look to the next? One value, which is stored, so that a restart forgets no load."""

import msgspec

from headrace.policies.autoscale_signals import FleetView, LoadSample
from headrace.policies.replica_spend import Spend

# The history that forecasts are made from: means over this long, an hour of them.
BUCKET_S = 15.0
HISTORY_MAX = 240
# A replica that has just become ready is slower than it will be, and so is what is measured of the deployment until then.
SETTLE_S = 10.0
# Older requests count half once that many newer ones have come.
_REQUESTS_MEMORY = 500.0


class Requests(msgspec.Struct, frozen=True, gc=False):
    """What a request is like, over the last ones that ended while no replica was new.

    Attributes:
        service_s: What those that ended took of a slot, together.
        uncached_tokens: What of their prompts no cache had.
    """

    ended: float = 0.0
    service_s: float = 0.0
    uncached_tokens: float = 0.0

    @property
    def mean_service_s(self) -> float | None:
        return self.service_s / self.ended if self.ended else None

    @property
    def mean_uncached_tokens(self) -> float | None:
        return self.uncached_tokens / self.ended if self.ended else None

    def after(self, sample: LoadSample) -> "Requests":
        kept = 0.5 if self.ended > _REQUESTS_MEMORY else 1.0
        return Requests(
            kept * self.ended + sample.ended,
            kept * self.service_s + sample.service_s,
            kept * self.uncached_tokens + sample.prompt_tokens - sample.cached_tokens,
        )


class History(msgspec.Struct, frozen=True):
    """Loads in replicas, one for each BUCKET_S, oldest first; and the bucket that is being filled."""

    loads: tuple[float, ...] = ()
    from_s: float | None = None
    sum: float = 0.0
    count: int = 0

    def after(self, load: float, *, now_s: float) -> "History":
        """Buckets in which nothing was measured repeat the one before: nobody knows better."""
        if self.from_s is None:
            return History(self.loads, now_s, load, 1)
        full = int((now_s - self.from_s) / BUCKET_S)
        if full == 0:
            return History(self.loads, self.from_s, self.sum + load, self.count + 1)
        mean = self.sum / self.count
        loads = (*self.loads, *([mean] * min(full, HISTORY_MAX)))[-HISTORY_MAX:]
        return History(loads, self.from_s + full * BUCKET_S, load, 1)


class Peaks(msgspec.Struct, frozen=True):
    """The highest load of the last while: what still may be the highest later on, falling, with its moments."""

    points: tuple[tuple[float, float], ...] = ()

    def after(self, load: float, *, now_s: float, keep_s: float) -> "Peaks":
        kept = [point for point in self.points if point[1] > load and point[0] > now_s - keep_s]
        return Peaks((*kept, (now_s, load)))

    @property
    def highest(self) -> float:
        return self.points[0][1] if self.points else 0.0


class Panic(msgspec.Struct, frozen=True, gc=False):
    """A burst is being answered: until that moment, and with no fewer replicas than that."""

    until_s: float
    replicas: int


class Renewal(msgspec.Struct, frozen=True, gc=False):
    """A replica that is being replaced because of its age, and since when."""

    replica: str
    since_s: float


class ScaleState(msgspec.Struct, frozen=True):
    """All that one decision leaves to the next. Times are on the clock that `decide` is given.

    Attributes:
        seen_s: When it was last asked; None before.
        samples: Looks within the longest window, oldest first.
        ready, ready_changed_s: How many were ready, and since when it is that many.
        active_s: When there was last something to do, or a replica became ready: a model that was loading wasn't idle.
        direction, direction_since_s: What the load asks for, 1 for more and -1 for fewer, without a break since then.
        stepped_s, stepped_to: When replicas were last taken away, and how many were to be left.
        renewal: The replica that is being replaced because of its age.
    """

    seen_s: float | None = None
    samples: tuple[LoadSample, ...] = ()
    requests: Requests = Requests()
    history: History = History()
    peaks: Peaks = Peaks()
    ready: int = 0
    ready_changed_s: float | None = None
    active_s: float | None = None
    direction: int = 0
    direction_since_s: float = 0.0
    stepped_s: float | None = None
    stepped_to: int = 0
    panic: Panic | None = None
    renewal: Renewal | None = None
    spend: Spend = Spend()


def take_in(
    state: ScaleState, sample: LoadSample | None, fleet: FleetView, *, keep_s: float, now_s: float
) -> ScaleState:
    """What this look adds, and without what is too old to matter.

    Args:
        sample: None where there was nothing to look at, as when no gateway reported.
    """
    ready = len(fleet.ready)
    newest_s = max((replica.ready_s or 0.0 for replica in fleet.ready), default=0.0)
    samples = state.samples
    requests = state.requests
    active_s = now_s if state.active_s is None else max(state.active_s, newest_s)
    if sample is not None:
        samples = (*samples, sample)
        if sample.start_s >= newest_s + SETTLE_S:
            requests = requests.after(sample)
        if not sample.is_idle:
            active_s = max(active_s, sample.end_s)
    return msgspec.structs.replace(
        state,
        seen_s=now_s,
        samples=tuple(each for each in samples if each.end_s > now_s - keep_s),
        requests=requests,
        ready=ready,
        ready_changed_s=now_s if ready != state.ready else state.ready_changed_s,
        active_s=active_s,
    )


def resume(state: ScaleState, *, away_s: float, now_s: float) -> ScaleState:
    """A stored state on the clock of another process, which may have begun elsewhere.

    Args:
        away_s: Since the state was stored, by the wall's clock; what is negative, as after a step of it, counts as nothing.
    """
    if state.seen_s is None:
        return state
    shift_s = now_s - max(0.0, away_s) - state.seen_s

    def shifted(at_s: float | None) -> float | None:
        return None if at_s is None else at_s + shift_s

    return msgspec.structs.replace(
        state,
        seen_s=state.seen_s + shift_s,
        samples=tuple(
            msgspec.structs.replace(each, start_s=each.start_s + shift_s, end_s=each.end_s + shift_s)
            for each in state.samples
        ),
        history=msgspec.structs.replace(state.history, from_s=shifted(state.history.from_s)),
        peaks=Peaks(tuple((at_s + shift_s, load) for at_s, load in state.peaks.points)),
        ready_changed_s=shifted(state.ready_changed_s),
        active_s=shifted(state.active_s),
        direction_since_s=state.direction_since_s + shift_s,
        stepped_s=shifted(state.stepped_s),
        panic=None
        if state.panic is None
        else msgspec.structs.replace(state.panic, until_s=state.panic.until_s + shift_s),
        renewal=None
        if state.renewal is None
        else msgspec.structs.replace(state.renewal, since_s=state.renewal.since_s + shift_s),
        spend=msgspec.structs.replace(state.spend, read_s=shifted(state.spend.read_s)),
    )
