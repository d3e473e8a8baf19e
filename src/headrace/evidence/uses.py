"""Who has used an acceptance set, when, on which revision, and what came of it? The audit log has it, and only grows.

Each look at a set's result teaches a little about it, and whoever picks the best of many looks has tuned on it. That can't be
forbidden to people who may decide; it can be made visible. So the use is written down before the first question is asked, also
of a run that somebody then breaks off, and its result after the last. And who looks again for the same decision has a smaller
chance of error left to spend (policies.looks).
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from headrace.core.clock import Clock
from headrace.core.verdicts import Verdict
from headrace.evidence.cases import CaseSet
from headrace.policies.quality_report import Look, QualityReport
from headrace.stores import audit, opening
from headrace.stores.audit import Act, Action, Entry
from headrace.stores.database import Database

_PAGE = 1000


class UseLog:
    """Writes to the audit log of a data directory. Raises ConfigError where it can't: then nothing is asked."""

    def __init__(self, data: Path, *, actor: str, clock: Clock) -> None:
        self._data = data
        self._actor = actor
        self._clock = clock

    def begin(self, cases: CaseSet, *, models: Sequence[str], purpose: str, is_unsealed: bool) -> Look:
        """Before the first question; tells of the uses before this one.

        Args:
            models: The candidate, and the accepted one if there is one.
        """
        facts = {
            "digest": cases.header.digest,
            "models": list(models),
            "purpose": purpose,
            "is_unsealed": is_unsealed,
        }
        self._data.mkdir(mode=0o700, parents=True, exist_ok=True)
        with closing(opening.open_database(self._data)) as database, database.transaction():
            look = _look(_entries(database, cases), digest=cases.header.digest, models=models)
            self._record(database, Action.ACCEPTANCE_BEGIN, cases.label, facts)
        return look

    def end(self, cases: CaseSet, report: QualityReport) -> None:
        """After the last."""
        found = [each for each in (report.candidate, report.accepted) if each is not None]
        facts = {
            "verdict": report.verdict.value if report.verdict is not None else "measured",
            "models": [each.model for each in found],
            "revisions": [", ".join(each.revisions) for each in found],
            "right": [each.tally.right for each in found],
            "wrong": [each.tally.wrong for each in found],
            "errors": [each.tally.errors for each in found],
        }
        with closing(opening.open_database(self._data)) as database, database.transaction():
            self._record(database, Action.ACCEPTANCE_END, cases.label, facts)

    def _record(self, database: Database, action: Action, target: str, facts: dict[str, Any]) -> None:
        changes = {name: (None, value) for name, value in facts.items()}
        audit.record(database, Act(self._clock.wall_s(), self._actor, action, target, changes=changes))


def _entries(database: Database, cases: CaseSet) -> Iterator[Entry]:
    """Every use of that version of the set, the oldest first."""
    after = 0
    while found := audit.entries(database, target=cases.label, after=after, limit=_PAGE):
        yield from found
        after = found[-1].number


def _look(entries: Iterator[Entry], *, digest: str, models: Sequence[str]) -> Look:
    """A look is one at the same set for the same decision: whatever is to replace one accepted model, or, where none is
    named, whatever is measured of one family. A run that ended in an error has shown nothing."""
    earlier = number = 0
    for entry in entries:
        facts = {name: new for name, (_, new) in entry.changes.items()}
        others: list[str] = facts.get("models", [])
        is_same = others[1:] == list(models[1:]) and (len(models) > 1 or _family(others) == _family(models))
        if entry.action == Action.ACCEPTANCE_BEGIN and facts.get("digest") == digest:
            earlier += _family(others) == _family(models)
            number += is_same
        elif entry.action == Action.ACCEPTANCE_END and facts.get("verdict") == Verdict.ERROR:
            number -= is_same
    return Look(max(0, number) + 1, earlier)


def _family(models: Sequence[str]) -> str:
    """`chat` of `chat@v4`: what revisions are revisions of."""
    return models[0].partition("@")[0] if models else ""
