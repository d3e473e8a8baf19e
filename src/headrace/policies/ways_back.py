"""Which versions may a deployment go back to? Those that served, never one that was left because it didn't do."""

from collections.abc import Collection, Iterable

FORTH = ("apply", "remove")
"""Why a version is wanted where that is no return to one before; see stores/deployments.py."""


def ways_back(wanted: Iterable[tuple[int, str]], served: Collection[int]) -> list[int]:
    """Versions to go back to from the one that is wanted now, the nearest first.

    Args:
        wanted: What was wanted so far and why, the oldest first.
        served: Versions that were accepted. Where none is known to have been, any may have.
    """
    path: list[int] = []
    for version, reason in wanted:
        if version in path:
            at = path.index(version)
            if reason in FORTH:
                del path[at]
            else:  # whatever was wanted in between was left
                del path[at:]
        path.append(version)
    return [version for version in reversed(path[:-1]) if not served or version in served]
