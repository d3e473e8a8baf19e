"""Which deployments were applied, and which version of each is wanted? Nothing that was applied is ever changed or lost.

    store.apply(spec, revision, file_text)      a new version, wanted from now on; the one that is wanted, where nothing differs
    store.want(name, 2, reason="rollback")      an older one again
    store.remove(name)                          none of them; its versions stay, and so does their count

The tables are in the data directory itself, also where tenants are kept in a central database: what runs on a machine is
that machine's. Each change is in the audit log.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.core.clock import Clock
from headrace.core.deployments import AppliedVersion, DeploymentSpec, Revision
from headrace.core.errors import ConfigError
from headrace.policies.ways_back import ways_back
from headrace.stores import agreements, audit, opening
from headrace.stores.audit import Act, Action
from headrace.stores.database import Database, Row

REMOVED = 0
# Of each name, besides the wanted one: a rollback to any of these needs nothing that has to be fetched again.
ROLLBACK_TARGETS = 3
# Of all names: many more than are said before the controller, which looks ten times a second, has heard them.
WORDS_MAX = 200

_COLUMNS = "name, version, file_text, spec, lock, actor, applied_s, template_text"
_NEWEST = "number IN (SELECT max(number) FROM deployment_wanted GROUP BY name)"


class Wish(NamedTuple):
    """That one version of a deployment should run.

    Attributes:
        version: REMOVED for none.
        reason: A word: "apply", "rollback", "remove", or of whoever else decided it.
        at_s: Unix seconds.
    """

    number: int
    name: str
    version: int
    reason: str
    actor: str
    at_s: float


class Meant(NamedTuple):
    """What a file says, and what that means now."""

    spec: DeploymentSpec
    revision: Revision
    file_text: str
    template_text: str = ""


class Word(NamedTuple):
    """What somebody said to a deployment's rollout; see policies/rollout_commands.py.

    Attributes:
        version: What is to be rehearsed, where it was named.
    """

    number: int
    name: str
    command: str
    version: int | None


class _Proven(msgspec.Struct, frozen=True):
    """What the state of a rollout says of versions that were accepted; see policies/rollout_state.py."""

    proven: tuple[int, ...] = ()


class DeploymentStore:
    """Applied versions and wishes; safe to call from several threads, and beside other processes.

    Args:
        database: In the data directory.
        open_audited: Opens the one where the audit log is, if that is another one. It is asked for when something is
            recorded: what was applied is known and kept true also while the other one is away.
    """

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        actor: str = "service",
        open_audited: Callable[[], Database] | None = None,
    ) -> None:
        self._database = database
        self._open_audited = open_audited
        self._clock = clock
        self._actor = actor

    def close(self) -> None:
        self._database.close()

    def acting(self, actor: str) -> "DeploymentStore":
        """The same store, for what somebody else does."""
        return DeploymentStore(
            self._database, clock=self._clock, actor=actor, open_audited=self._open_audited
        )

    # What there is

    def revision(self) -> int:
        """Grows with every change of what is wanted, and with every word to a rollout."""
        found = self._database.row(
            "SELECT (SELECT coalesce(max(number), 0) FROM deployment_wanted)"
            " + (SELECT coalesce(max(number), 0) FROM rollout_word)"
        )
        assert found is not None, "an aggregate has a row"
        return int(found[0])

    def wishes(self) -> dict[str, Wish]:
        """The newest of every name that was ever applied, also of removed ones."""
        rows = self._database.rows(
            f"SELECT number, name, version, reason, actor, at_s FROM deployment_wanted WHERE {_NEWEST} ORDER BY name"
        )
        return {row[1]: Wish(*row) for row in rows}

    def history(self, name: str) -> list[Wish]:
        """All of one name, the oldest first."""
        rows = self._database.rows(
            "SELECT number, name, version, reason, actor, at_s FROM deployment_wanted WHERE name = ? ORDER BY number",
            (name,),
        )
        return [Wish(*row) for row in rows]

    def wanted(self) -> dict[str, AppliedVersion]:
        """The version of each name that should run, by name; without those that were removed."""
        rows = self._database.rows(
            f"SELECT {', '.join(f'v.{column}' for column in _COLUMNS.split(', '))}"
            " FROM deployment_version v JOIN deployment_wanted w ON w.name = v.name AND w.version = v.version"
            f" WHERE w.{_NEWEST} ORDER BY v.name"
        )
        return {row[0]: _version(row) for row in rows}

    def versions(self, name: str) -> list[AppliedVersion]:
        """Every version of one name, the newest first."""
        rows = self._database.rows(
            f"SELECT {_COLUMNS} FROM deployment_version WHERE name = ? ORDER BY version DESC", (name,)
        )
        return [_version(row) for row in rows]

    def version(self, name: str, number: int) -> AppliedVersion:
        """Raises ConfigError, naming what there is."""
        row = self._database.row(
            f"SELECT {_COLUMNS} FROM deployment_version WHERE name = ? AND version = ?", (name, number)
        )
        if row is None:
            self.require(name)
            known = ", ".join(str(each.version) for each in self.versions(name))
            raise ConfigError(f"{name} has no version {number}; it has {known}")
        return _version(row)

    def require(self, name: str) -> Wish:
        """What is wanted of that name. Raises ConfigError, naming the nearest, where it was never applied."""
        wishes = self.wishes()
        if name not in wishes:
            hint = agreements.nearest(name, list(wishes)) if wishes else "none was ever applied"
            raise ConfigError(f"no deployment `{name}`; {hint}")
        return wishes[name]

    def rollback_target(self, name: str) -> AppliedVersion:
        """The version that served before the one that is wanted. Raises ConfigError where there is none."""
        wish = self.require(name)
        for version in self._ways_back(name):
            return self.version(name, version)
        raise ConfigError(
            f"{name} has nothing to go back to: no version served before version {wish.version}, but for those that were"
            f" left; `headrace rollback {name} --to V` takes any"
        )

    def within_reach(self) -> list[AppliedVersion]:
        """Of each name what is wanted, what it may go back to, and what was last wanted before it: whatever they are made of
        may be needed at once."""
        reached: list[AppliedVersion] = []
        for name, wish in self.wishes().items():
            numbers = [wish.version] if wish.version != REMOVED else []
            asked_for = [earlier.version for earlier in reversed(self.history(name))]
            for version in (*self._ways_back(name), *asked_for):
                if len(numbers) <= ROLLBACK_TARGETS and version not in (*numbers, REMOVED):
                    numbers.append(version)
            reached += [self.version(name, number) for number in numbers]
        return reached

    def _ways_back(self, name: str) -> list[int]:
        row = self._database.row("SELECT accepted, rollout FROM deployment_state WHERE name = ?", (name,))
        kept = _Proven() if row is None or not row[1] else msgspec.json.decode(row[1], type=_Proven)
        accepted = () if row is None or row[0] is None else (row[0],)
        history = [(wish.version, wish.reason) for wish in self.history(name)]
        return [each for each in ways_back(history, {*accepted, *kept.proven}) if each != REMOVED]

    def words(self) -> list[Word]:
        """The newest words to rollouts, the oldest of them first."""
        rows = self._database.rows(
            "SELECT number, name, command, version FROM rollout_word ORDER BY number DESC LIMIT ?",
            (WORDS_MAX,),
        )
        return [Word(*row) for row in reversed(rows)]

    # What is done

    def apply(
        self, spec: DeploymentSpec, revision: Revision, file_text: str, *, template_text: str = ""
    ) -> tuple[AppliedVersion, bool]:
        """The version that says this, wanted from now on; and whether anything changed.

        Nothing does where the wanted version has the same spec and the same revision, whatever its file looks like.
        """
        (applied,) = self.apply_all([Meant(spec, revision, file_text, template_text)])
        return applied

    def apply_all(self, meant: Iterable[Meant]) -> list[tuple[AppliedVersion, bool]]:
        """The same for several, in their order: all of them or, where something goes wrong, none."""
        with self._database.transaction():
            return [self._apply(each) for each in meant]

    def _apply(self, meant: Meant) -> tuple[AppliedVersion, bool]:
        """Inside the transaction."""
        name = meant.spec.name
        wish = self.wishes().get(name)
        if wish is not None and wish.version != REMOVED:
            current = self.version(name, wish.version)
            if (current.spec, current.revision) == (meant.spec, meant.revision):
                return current, False
        row = self._database.row(
            "INSERT INTO deployment_version"
            " (name, version, file_text, spec, lock, digest, actor, applied_s, template_text)"
            " SELECT ?, coalesce(max(version), 0) + 1, ?, ?, ?, ?, ?, ?, ? FROM deployment_version WHERE name = ?"
            f" RETURNING {_COLUMNS}",
            (
                name,
                meant.file_text,
                msgspec.json.encode(meant.spec).decode(),
                msgspec.json.encode(meant.revision).decode(),
                meant.revision.digest,
                self._actor,
                self._clock.wall_s(),
                meant.template_text,
                name,
            ),
        )
        assert row is not None, "RETURNING has a row"
        applied = _version(row)
        self._wish(name, applied.version, "apply", Action.DEPLOYMENT_APPLY, digest=meant.revision.digest)
        return applied, True

    def want(
        self, name: str, version: int, *, reason: str = "rollback", instead_of: int | None = None
    ) -> bool:
        """That version is wanted from now on; whether that changes anything. Raises ConfigError where there is none.

        Args:
            instead_of: Only while this one is wanted.
        """
        with self._database.transaction():
            target = self.version(name, version)
            wanted = self.require(name).version
            if wanted == version or instead_of not in (None, wanted):
                return False
            self._wish(name, version, reason, Action.DEPLOYMENT_ROLLBACK, digest=target.revision.digest)
        return True

    def remove(self, name: str) -> bool:
        """No version is wanted any more; whether one was. Raises ConfigError for a name that was never applied."""
        with self._database.transaction():
            if self.require(name).version == REMOVED:
                return False
            self._wish(name, REMOVED, "remove", Action.DEPLOYMENT_REMOVE)
        return True

    def say(self, name: str, command: str, *, version: int | None = None) -> int:
        """To the rollouts of that deployment; returns the number that the controller's answer will have.

        Raises ConfigError for a name that was never applied.
        """
        now_s = self._clock.wall_s()
        with self._database.transaction():
            self.require(name)
            row = self._database.row(
                "INSERT INTO rollout_word (name, command, version, actor, at_s) VALUES (?, ?, ?, ?, ?) RETURNING number",
                (name, command, version, self._actor, now_s),
            )
            assert row is not None, "RETURNING has a row"
            self._database.execute("DELETE FROM rollout_word WHERE number <= ?", (row[0] - WORDS_MAX,))
            said = {"command": (None, command)} | ({} if version is None else {"version": (None, version)})
            self._record(Act(now_s, self._actor, Action.ROLLOUT_SAY, name, changes=said))
        return int(row[0])

    def _wish(self, name: str, version: int, reason: str, action: Action, *, digest: str = "") -> None:
        """Inside the transaction of whoever decides it."""
        now_s = self._clock.wall_s()
        before = self.wishes().get(name)
        self._database.execute(
            "INSERT INTO deployment_wanted (number, name, version, reason, actor, at_s)"
            " SELECT coalesce(max(number), 0) + 1, ?, ?, ?, ?, ? FROM deployment_wanted",
            (name, version, reason, self._actor, now_s),
        )
        old = {} if before is None else {"version": before.version or None}
        new: dict[str, object] = {"version": version or None, "reason": reason}
        if digest:
            new["digest"] = digest
        self._record(Act(now_s, self._actor, action, name, changes=audit.differences(old, new)))

    def _record(self, act: Act) -> None:
        """Inside the transaction of what is done."""
        if self._open_audited is None:
            audit.record(self._database, act)
            return
        # Before the change is committed here: an entry too many is found, one that is missing isn't.
        with closing(self._open_audited()) as audited, audited.transaction():
            audit.record(audited, act)


def open_deployments(data: Path, *, clock: Clock, actor: str = "service") -> DeploymentStore:
    """The store of that data directory."""
    open_audited = partial(opening.open_database, data) if opening.remembered(data) else None
    return DeploymentStore(opening.open_local(data), clock=clock, actor=actor, open_audited=open_audited)


def _version(row: Row) -> AppliedVersion:
    name, version, file_text, spec, lock, actor, applied_s, template_text = row
    try:
        return AppliedVersion(
            name=name,
            version=version,
            spec=msgspec.json.decode(spec, type=DeploymentSpec),
            revision=msgspec.json.decode(lock, type=Revision),
            applied_s=applied_s,
            actor=actor,
            file_text=file_text,
            template_text=template_text,
        )
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{name}: its version {version} was applied by a newer headrace ({error})"
        ) from error
