"""How does a rollout read on a terminal? Where it is, what it waits for, what its gates say, and how the last one ended."""

from collections.abc import Iterator
from typing import Any

from headrace.cli import common
from headrace.core import moments
from headrace.core.fleet import target_key

Json = dict[str, Any]

WAITS = {
    "replicas": "its replicas to be ready",
    "old_replicas": "the old replicas to end",
    "acceptance_run": "its acceptance set",
    "requests": "more requests",
    "share": "its share of the requests; it gets less than it should",
    "time": "the least time of this step",
    "next_check": "the next check",
    "evidence": "evidence: the checks neither pass nor fail; `rollout promote` or `rollout abort` decides",
    "held": "`rollout resume` or `rollout promote`: it is held",
    "promotion": "`rollout promote` or `rollout abort`",
}


def lines(row: Json) -> Iterator[str]:
    """One deployment."""
    name = row["name"]
    serves = ", ".join(f"{share:.1%} {target}" for target, share in row.get("weights", {}).items())
    yield f"{name}: {serves or 'nothing serves yet'}"
    if "stage" in row:
        yield from _progress(name, row)
    elif row["wanted"] != row["accepted"] and row["wanted"] is not None:
        yield f"  version {row['wanted']} is wanted"
    if row.get("previous") is not None:
        left = row["previous_left_s"]
        yield f"  {target_key(name, row['previous'])} is kept ready for another {left} s: `headrace rollback {name}` is immediate"
    if (last := row.get("last")) is not None:
        yield f"  last: {_ended(name, last)}"
        if "stage" not in row:
            yield from _checks(last["checks"])
    if (rehearsing := row.get("rehearsing")) is not None:
        ready = rehearsing["ready_s"]
        stage = "starting" if ready is None else f"ready after {ready:.1f} s, its answers are looked at"
        yield f"  rehearsing {target_key(name, rehearsing['version'])} for {rehearsing['age_s']} s: {stage}"
    found = row.get("rehearsed")
    yield "  rehearsed: never" if found is None else f"  {rehearsed(name, found)}"


def rehearsed(name: str, found: Json) -> str:
    """What a rehearsal showed, in a line."""
    told = (
        f"rehearsed: {target_key(name, found['version'])} {found['verdict']} at {moments.utc(found['at_s'])}"
    )
    if found["ready_s"] is not None:
        told += f", ready after {found['ready_s']:.1f} s"
    for result in found["acceptance"]:
        share = result["candidate_share"]
        told += f", {result['gate']} {result['verdict']}" + ("" if share is None else f" ({share:.0%} right)")
    return told + (f": {found['detail']}" if found["detail"] else "")


def _progress(name: str, row: Json) -> Iterator[str]:
    place = row["stage"] if row["step"] is None else f"step {row['step']} of {row['steps']}"
    held = ", held" if row["is_held"] else ""
    yield f"  {target_key(name, row['candidate'])} by {row['strategy']}: {place}{held}, {row['age_s']} s after its begin"
    waits: str = WAITS[row["waits_for"]]
    if row["waits_for"] == "requests" and row["requests_needed"]:
        waits += f": {row['requests']} of {row['requests_needed']} have ended"
    yield f"  waits for {waits}"
    for result in row["acceptance"]:
        yield f"  {result['gate']}: {result['verdict']}, {result['detail']}"
    yield from _checks(row["checks"])


def _checks(checks: list[Json]) -> Iterator[str]:
    if not checks:
        return
    table = common.table(
        [
            (
                each["gate"] + (" (dry run)" if each["is_dry"] else ""),
                each["verdict"],
                each["why"].replace("_", " "),
                *(
                    None if each[key] is None else f"{each[key]:.4g}"
                    for key in ("found", "low", "high", "limit")
                ),
                each["requests"],
                each["control_requests"],
            )
            for each in checks
        ],
        headings=("gate", "verdict", "why", "found", "at least", "at most", "limit", "requests", "control"),
    )
    yield from (f"    {line}" for line in table)


def _ended(name: str, last: Json) -> str:
    told = f"{target_key(name, last['candidate'])} {last['result'].replace('_', ' ')} after {last['age_s']:.0f} s"
    why = last["detail"] or last["reason"].replace("_", " ")
    return told if last["result"] == "promoted" else f"{told} in {last['stage']}: {why}"
