"""What do callers notice of a rollout, and how soon is a bad version gone?

A service with an accepted version under a steady load, to which a second version is applied that is good, slow, failing,
wrong, never ready or crashing. Engines are scripted processes; gateway, controller and acceptance set are the real ones.
"""

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple

import msgspec

from benchmarks import machine, table
from headrace.core.clock import SystemClock
from headrace.stores.fleet import KeptDecision, open_fleet
from tests.support.acceptance_sets import words
from tests.support.fleet import NAME, Fleet, fleet

GATES = [
    {"metric": "failure_rate", "max_delta": 0.02},
    {"metric": "ttft_p95", "max_ratio": 2.0},
]
QUALITY = {"metric": "quality:words", "min_delta": -0.15}
LIFECYCLE = {"ready": {"timeout_s": 2}, "start_timeout_s": 3, "start_stall_s": 2, "restarts_max": 2}
PACE: dict[str, Any] = {"ttft_ms": 20, "slots": 8}
LIMIT_S = 180.0
HEADINGS = (
    "version", "ended", "by", "requests", "failed", "by the candidate", "checks", "after the minimum", "last to it (s)",
)  # fmt: skip
LEGEND = """
failed: requests with any other outcome than a whole answer, of all. by the candidate: answers that came from it. checks: that
judged the last step. after the minimum: of those, checks with enough requests until it was decided. last to it: when the
last request that the candidate answered was sent, after the decision."""


class Kind(NamedTuple):
    """A version, how it is, and how its rollout should end; whether its answers are looked at before customers get them.

    That would find what fails and crashes too, before it had a request of a customer.
    """

    name: str
    args: dict[str, Any]
    result: str
    has_quality_gate: bool = False


KINDS = (
    Kind("good", {"answer": "better"}, "promoted"),
    Kind("slow", {"answer": "better", "ttft_ms": 300}, "rolled_back"),
    Kind("failing", {"answer": "better", "fault": "error:500@1/2"}, "rolled_back"),
    Kind("wrong answers", {"answer": "wrong"}, "rolled_back", has_quality_gate=True),
    Kind("never ready", {"answer": "better", "load_s": 600}, "rolled_back"),
    Kind("crash loop", {"answer": "better", "fault": "die:0"}, "rolled_back"),
)


class Request(NamedTuple):
    """One request of a caller: when it was sent, in Unix seconds."""

    sent_s: float
    outcome: str
    text: str


@contextmanager
def _load(running: Fleet, callers: int) -> Iterator[list[Request]]:
    """Callers that ask one after the other until the block ends, and what they got."""
    seen: list[Request] = []
    stop = threading.Event()
    threads = [threading.Thread(target=_call, args=(running, stop, seen)) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join(90)


def _call(running: Fleet, stop: threading.Event, seen: list[Request]) -> None:
    body = json.dumps({"model": NAME, "messages": [{"role": "user", "content": "hello"}]})
    headers = {"authorization": f"Bearer {running.key}", "content-type": "application/json"}
    connection = HTTPConnection("127.0.0.1", running.service.port, timeout=60)
    while not stop.wait(0.01):
        sent_s, text = time.time(), ""
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            answer = connection.getresponse()
            outcome, content = str(answer.status), answer.read()
            if answer.status == 200:
                text = json.loads(content)["choices"][0]["message"]["content"]
        except (OSError, HTTPException, ValueError) as error:
            outcome = type(error).__name__
            connection.close()
        seen.append(Request(sent_s, outcome, text))
    connection.close()


def _measure(kind: Kind, arguments: argparse.Namespace) -> dict[str, Any]:
    rollout = {
        "steps": [{"weight": 20, "min_requests": arguments.requests}, {"weight": 50, "min_requests": arguments.requests}],
        "interval_s": arguments.interval,
        "keep_previous_s": 0,
        "sticky": "none",
        "gate": [*GATES, QUALITY] if kind.has_quality_gate else GATES,
    }  # fmt: skip
    sections = {"rollout": rollout, "lifecycle": LIFECYCLE}
    with fleet() as running:
        words(running.service, right=["good", "better"])
        first = {**sections, "rollout": {**rollout, "gate": GATES}}
        running.apply(sections=first, answer="good", **PACE)
        running.until_answered("good")
        with _load(running, arguments.callers) as seen:
            args: dict[str, Any] = {**PACE, **kind.args}
            running.apply(sections=sections, **args)
            decisions = _until(lambda: _ended(running, 2))
            time.sleep(2.0)
    return _found(kind, seen, decisions)


def _ended(running: Fleet, candidate: int) -> list[KeptDecision] | None:
    """All decisions about that candidate, once its rollout has ended."""
    store = open_fleet(running.service.data, clock=SystemClock())
    try:
        found = store.decisions(deployment=NAME, kind="rollout", most=1000)
    finally:
        store.close()
    of_it = [each for each in found if _outcome(each).get("candidate") == candidate]
    return of_it if of_it and "result" in _outcome(of_it[-1]) else None


def _until(look: Callable[[], list[KeptDecision] | None]) -> list[KeptDecision]:
    until_s = time.monotonic() + LIMIT_S
    while (found := look()) is None:
        if time.monotonic() > until_s:
            raise SystemExit(f"the rollout had not ended after {LIMIT_S:.0f} s")
        time.sleep(0.2)
    return found


def _outcome(kept: KeptDecision) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(kept.decision.outcome)
    return found


def _found(kind: Kind, seen: list[Request], decisions: list[KeptDecision]) -> dict[str, Any]:
    last, told = decisions[-1], _outcome(decisions[-1])
    checks = _checks_of_the_last_step(decisions)
    theirs = [request for request in seen if request.text == kind.args["answer"]]
    is_promoted = told["result"] == "promoted"
    return {
        "version": kind.name,
        "result": told["result"],
        "is_as_it_should": told["result"] == kind.result,
        "reason": last.decision.reason,
        "detail": told["detail"],
        "requests": len(seen),
        "failed": sum(request.outcome != "200" for request in seen),
        "by_candidate": len(theirs),
        "checks": len(checks),
        "checks_after_minimum": sum(checks),
        "last_to_it_s": None
        if is_promoted or not theirs
        else max(each.sent_s for each in theirs) - last.at_s,
    }


def _checks_of_the_last_step(decisions: Sequence[KeptDecision]) -> list[bool]:
    """Of each check of the step in which it was decided: whether there were requests enough."""
    checks: list[bool] = []
    for kept in decisions:
        told = _outcome(kept)
        if kept.decision.reason == "opened" or kept.decision.reason in ("stepping", "promoting"):
            checks = []
        elif kept.decision.reason in ("checked", "gate_failed") and told.get("checks"):
            checks.append(all(each["why"] != "too_few_samples" for each in told["checks"]))
    return checks


def _rows(found: Sequence[dict[str, Any]]) -> str:
    return table.rows(
        HEADINGS,
        [
            (
                each["version"], each["result"].replace("_", " "), each["reason"].replace("_", " "), f"{each['requests']:,}",
                str(each["failed"]), str(each["by_candidate"]), str(each["checks"]), str(each["checks_after_minimum"]),
                table.number(each["last_to_it_s"], 2),
            )
            for each in found
        ],
    )  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rollout", description=__doc__,
        epilog="example: python -m benchmarks.rollout --only failing slow",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    names = [kind.name for kind in KINDS]
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="VERSION", help=f"of {', '.join(names)}"
    )
    parser.add_argument("--callers", type=int, default=6, help="that ask one after the other (default: 6)")
    parser.add_argument("--requests", type=int, default=100, help="least number of a step (default: 100)")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between two checks (default: 1)")
    table.add_json_argument(parser, "rollout")
    arguments = parser.parse_args(argv)
    facts = machine.facts()
    found = [_measure(kind, arguments) for kind in KINDS if kind.name in arguments.only]
    print(_rows(found))
    print(LEGEND)
    written = table.write_json(arguments.json, "rollout", facts, {"rollouts": found})
    print(f"\nwritten to {written}")
    return 0 if all(each["is_as_it_should"] and not each["failed"] for each in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
