"""Which version of each deployment is wanted? What was applied, before what headrace.toml offers."""

from collections.abc import Iterable, Mapping

from headrace.core.deployments import AppliedVersion
from headrace.core.errors import HeadraceError
from headrace.stores.database import DatabaseUnavailable
from headrace.stores.deployments import DeploymentStore, Word


class WantedVersions:
    """State: what was wanted when it was last read, and every version that was asked for; those never change.

    Args:
        implicit: What headrace.toml offers, by name: versions 0.
    """

    def __init__(self, store: DeploymentStore, implicit: Mapping[str, AppliedVersion]) -> None:
        self._store = store
        self._implicit = implicit
        self._revision = -1
        self._wanted: dict[str, AppliedVersion] = {}
        self._reasons: dict[str, str] = {}
        self._words: list[Word] = []
        self._versions: dict[tuple[str, int], AppliedVersion | None] = {}

    def read(self) -> None:
        """Looks whether anything has changed. Raises DatabaseUnavailable."""
        revision = self._store.revision()
        if revision == self._revision:
            return
        self._wanted = {**self._implicit, **self._store.wanted()}
        self._reasons = {name: wish.reason for name, wish in self._store.wishes().items()}
        self._words = self._store.words()
        self._revision = revision

    def names(self) -> Iterable[str]:
        return self._wanted.keys()

    def get(self, name: str) -> AppliedVersion | None:
        """None where no version is wanted."""
        return self._wanted.get(name)

    def reason(self, name: str) -> str:
        """Why that one, in the words of stores.deployments; "" for what was never applied."""
        return self._reasons.get(name, "")

    def words(self, name: str) -> tuple[Word, ...]:
        """What was said to its rollouts lately, heard or not."""
        return tuple(word for word in self._words if word.name == name)

    def version(self, name: str, number: int) -> AppliedVersion | None:
        """None where there is none, such as what headrace.toml doesn't offer any more. Raises DatabaseUnavailable."""
        key = name, number
        if key not in self._versions:
            self._versions[key] = self._find(name, number)
        return self._versions[key]

    def _find(self, name: str, number: int) -> AppliedVersion | None:
        if number == 0:
            return self._implicit.get(name)
        try:
            return self._store.version(name, number)
        except DatabaseUnavailable:
            raise
        except HeadraceError:
            return None
