"""How long did requests of a deployment hold their slots lately? The mean over the ledger's newest, for estimates."""

from typing import NamedTuple

from headrace.stores.database import Database

SAMPLE_MAX = 1000
SAMPLE_MIN = 10
# The ledger has an index by time and none by model: this bounds what is read of one that other models fill.
LOOK_BACK_S = 7 * 86_400.0
_ROWS_MAX = 50_000


class Measured(NamedTuple):
    """What was found.

    Attributes:
        basis: In words, what it is the mean of.
    """

    service_s: float
    basis: str


def measured(database: Database, model: str, revision: str) -> Measured | None:
    """Of that revision, else of whatever had the name before; None where fewer than SAMPLE_MIN were delivered."""
    row = database.row("SELECT coalesce(max(started_s), 0.0) FROM usage")
    assert row is not None, "an aggregate has a row"
    rows = database.rows(
        "SELECT revision, total_s - queue_wait_s FROM"
        " (SELECT model, revision, total_s, queue_wait_s, outcome, started_s FROM usage WHERE started_s >= ?"
        " ORDER BY started_s DESC LIMIT ?) recent"
        " WHERE model = ? AND outcome = 'delivered' ORDER BY started_s DESC",
        (row[0] - LOOK_BACK_S, _ROWS_MAX, model),
    )
    same = [held_s for digest, held_s in rows if digest == revision][:SAMPLE_MAX]
    if len(same) >= SAMPLE_MIN:
        return Measured(sum(same) / len(same), f"mean of the last {len(same)} requests of this revision")
    earlier = [held_s for _, held_s in rows][:SAMPLE_MAX]
    if len(earlier) >= SAMPLE_MIN:
        return Measured(
            sum(earlier) / len(earlier), f"mean of the last {len(earlier)} requests, of earlier revisions"
        )
    return None
