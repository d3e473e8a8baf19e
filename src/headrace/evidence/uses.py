"""Who has used an acceptance set, when, on which revision, and what came of it? The audit log has it, and only grows.

Each look at a set's result teaches a little about it, and whoever picks the best of many looks has tuned on it. That can't be
forbidden to people who may decide; it can be made visible. So the use is written down before the first question is asked, also
of a run that somebody then breaks off, and its result after the last.
"""

from pathlib import Path

from headrace.core.clock import Clock
from headrace.evidence.cases import CaseSet
from headrace.policies.quality_report import QualityReport
from headrace.stores import audit, opening
from headrace.stores.audit import Act, Action


class UseLog:
    """Writes to the audit log of a data directory. Raises ConfigError where it can't: then nothing is asked."""

    def __init__(self, data: Path, *, actor: str, clock: Clock) -> None:
        self._data = data
        self._actor = actor
        self._clock = clock

    def begin(self, cases: CaseSet, *, models: list[str], purpose: str, is_unsealed: bool) -> None:
        """Before the first question."""
        self._record(
            Action.ACCEPTANCE_BEGIN,
            cases.label,
            {
                "digest": cases.header.digest,
                "models": models,
                "purpose": purpose,
                "is_unsealed": is_unsealed,
            },
        )

    def end(self, cases: CaseSet, report: QualityReport) -> None:
        """After the last."""
        found = [each for each in (report.candidate, report.accepted) if each is not None]
        self._record(
            Action.ACCEPTANCE_END,
            cases.label,
            {
                "verdict": report.verdict.value if report.verdict is not None else "measured",
                "models": [each.model for each in found],
                "revisions": [", ".join(each.revisions) for each in found],
                "right": [each.tally.right for each in found],
                "wrong": [each.tally.wrong for each in found],
                "errors": [each.tally.errors for each in found],
            },
        )

    def _record(self, action: Action, target: str, facts: dict[str, object]) -> None:
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = opening.open_database(self._data)
        try:
            with database.transaction():
                changes = {name: (None, value) for name, value in facts.items()}
                audit.record(
                    database, Act(self._clock.wall_s(), self._actor, action, target, changes=changes)
                )
        finally:
            database.close()
