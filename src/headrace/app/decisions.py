"""Would today's code decide what was decided then? Recorded decisions, and who decides each kind of them again."""

from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.control import autoscaler
from headrace.core import moments
from headrace.core.errors import ConfigError
from headrace.policies import rollout_record
from headrace.policies.decisions import Decision, Replay, difference
from headrace.stores.fleet import KeptDecision

REPLAYS: dict[str, Replay] = {
    autoscaler.KIND: autoscaler.replay,
    rollout_record.KIND: rollout_record.replay,
}


class Record(msgspec.Struct, frozen=True):
    """A decision as `headrace decisions list --json` writes it; `at` is ISO 8601, UTC."""

    seq: int
    at: str
    epoch: int
    kind: str
    deployment: str
    reason: str
    inputs: msgspec.Raw
    outcome: msgspec.Raw

    @property
    def decision(self) -> Decision:
        return Decision(self.kind, self.deployment, self.reason, self.inputs, self.outcome)


class Again(NamedTuple):
    """How one of them is decided now: `different` is "" where it is the same, None where nobody can say."""

    record: Record
    different: str | None


def record(kept: KeptDecision) -> Record:
    decision = kept.decision
    return Record(
        kept.seq,
        moments.utc(kept.at_s),
        kept.epoch,
        decision.kind,
        decision.deployment,
        decision.reason,
        decision.inputs,
        decision.outcome,
    )


def read(file: Path) -> list[Record]:
    """What `headrace decisions list --json` wrote there. Raises ConfigError."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[Record])
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{file}: not what `headrace decisions list --json` writes ({error})") from error


def replay(records: list[Record]) -> list[Again]:
    """Each of them, decided again by the same pure code that a controller runs, from what is in its record alone."""
    return [Again(each, difference(each.decision, REPLAYS)) for each in records]
