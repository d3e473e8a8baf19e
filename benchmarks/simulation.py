"""How near is a simulated fleet to a real one? The same requests at the same moments, to a service with scripted engines and to the model.

The engines' pace is known: so long to the first token, so long for each further one, so many slots. What differs is what the model
leaves out: the gateway's own work, the network of one machine, the scheduling of its processes. Each metric is compared by itself
and with its sign, since errors of parts cancel in a total.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from benchmarks import machine, table
from headrace.core.outcome import Outcome
from headrace.evidence.simulate_fleet import Fixed, FleetModel
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_work import Promise, Work
from headrace.policies.quantiles import nearest_rank
from tests.support.fleet import Fleet, fleet

REPLICAS, SLOTS = 2, 4
TTFT_S, STEP_S, TOKENS = 0.1, 0.02, 20
SERVICE_S = TTFT_S + (TOKENS - 1) * STEP_S
LOADS = (0.5, 0.8, 0.95)
ANSWER_LIMIT_S = 120.0
WARM_SHARE = 0.1


class Seen(NamedTuple):
    arrival_s: float
    ttft_s: float
    total_s: float
    is_whole: bool


def _arrivals(load: float, seconds: float, seed: int) -> list[Work]:
    chance, at_s, works = Random(seed), 0.0, []
    rate = load * REPLICAS * SLOTS / SERVICE_S
    while (at_s := at_s + chance.expovariate(rate)) < seconds:
        works.append(Work(at_s, 1, TOKENS))
    return works


def _simulated(works: Sequence[Work]) -> list[Seen]:
    pace = Pace(
        slots=SLOTS, overhead_s=TTFT_S, prefill_tokens_per_s=1e9, step_s=STEP_S, step_per_active_s=0.0
    )
    run = FleetModel(
        works, Fixed(REPLICAS), pace=pace, promise=Promise(queue_max=64, wait_max_s=60.0), replicas=REPLICAS
    ).run()
    return [
        Seen(end.arrival_s, end.ttft_s, end.total_s, end.outcome is Outcome.DELIVERED) for end in run.ends()
    ]


async def _played(works: Sequence[Work], port: int, key: str) -> list[Seen]:
    """An open loop: each at its moment, whatever became of those before."""
    body = json.dumps(
        {"model": "chat", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    ).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    ).encode() + body
    begin_s = time.perf_counter()

    async def ask(work: Work) -> Seen:
        due_s = begin_s + work.arrival_s
        await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        first_s, text = 0.0, b""
        async with asyncio.timeout(ANSWER_LIMIT_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            while data := await reader.read(65536):
                text += data
                if not first_s and b'"content":"' in text:
                    first_s = time.perf_counter()
            writer.close()
        end_s = time.perf_counter()
        return Seen(work.arrival_s, (first_s or end_s) - due_s, end_s - due_s, b"[DONE]" in text)

    return list(await asyncio.gather(*map(ask, works)))


def _figures(seen: Sequence[Seen], seconds: float) -> dict[str, float]:
    counted = [each for each in seen if each.arrival_s >= WARM_SHARE * seconds]
    whole = [each for each in counted if each.is_whole]
    figures = {"not served": 1.0 - len(whole) / len(counted)}
    for name in ("ttft_s", "total_s"):
        values = sorted(getattr(each, name) for each in whole)
        figures[f"{name[:-2]} mean"] = sum(values) / len(values)
        for share in (0.5, 0.9, 0.99):
            figures[f"{name[:-2]} p{100 * share:.0f}"] = nearest_rank(values, share)
    return figures


def _compare(running: Fleet, load: float, seconds: float, seed: int) -> list[dict[str, Any]]:
    works = _arrivals(load, seconds, seed)
    real = _figures(asyncio.run(_played(works, running.service.port, running.key)), seconds)
    model = _figures(_simulated(works), seconds)
    return [
        {
            "load": load, "requests": len(works), "metric": name, "real": real[name], "model": model[name],
            "error": model[name] / real[name] - 1.0 if real[name] else None,
        }
        for name in real
    ]  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--seconds", type=float, default=40.0, metavar="S", help="of each load (default: 40)")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals (default: 1)")
    table.add_json_argument(parser, "simulation")
    arguments = parser.parse_args(argv)
    rows: list[dict[str, Any]] = []
    pace = {"slots": SLOTS, "ttft_ms": round(1000 * TTFT_S), "itl_ms": round(1000 * STEP_S), "tokens": TOKENS}
    with fleet() as running:
        running.apply(sections={"scale": {"min": REPLICAS, "max": REPLICAS}}, **pace)
        running.until_ready()
        deadline_s = time.monotonic() + 60.0
        while len(running.ready()) < REPLICAS and time.monotonic() < deadline_s:
            time.sleep(0.1)
        for load in LOADS:
            rows += _compare(running, load, arguments.seconds, arguments.seed)
    cells = [
        [
            f"{100 * row['load']:.0f} %", f"{row['requests']:,}", row["metric"], f"{row['real']:.4f}",
            f"{row['model']:.4f}", "-" if row["error"] is None else f"{100 * row['error']:+.1f} %",
        ]
        for row in rows
    ]  # fmt: skip
    print(table.rows(("load", "requests", "metric", "service", "model", "error"), cells))
    written = table.write_json(arguments.json, "simulation", machine.facts(), {"rows": rows})
    print(
        f"\nseconds, but for shares; error: what the model says, over what was measured. Samples: {written}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
