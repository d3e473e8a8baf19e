"""How much of the embedded engine's speed reaches the caller through headrace, and how long does a cold start take?

Tokens per second of several streams at once, through headrace and straight from the engine, in turns. It is the same
engine process for both: the benchmark starts it as headrace would, but with a key of its own, and puts headrace in
front of it as it does with any server. So neither model nor threads nor memory differ, only the way.
"""

import argparse
import asyncio
import os
import re
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from benchmarks import machine, rig, table
from benchmarks.loadgen import Target
from headrace import config
from headrace.core.fleet import Task
from headrace.engines.child import EngineReport
from headrace.engines.embedded import EngineSettings, default_threads
from headrace.engines.kinds import EMBEDDED_ENGINE
from headrace.stores.registry import ModelStore

ENGINE_KEY = "BENCH_ENGINE_KEY"
ANSWER_LIMIT_S = 300.0
RATIO_AIM = 0.95
_TOPICS = (
    "the sea",
    "a mountain village",
    "an old clock",
    "the first winter",
    "a railway",
    "bread",
    "a lighthouse",
)
_COMPLETION_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')

Sample = dict[str, float]


def start_engine(started: rig.Rig, model_path: Path, *, model: str, slots: int) -> tuple[int, int, str]:
    """An engine as headrace runs it, in all but the lifeline; its pid, port and key."""
    settings = EngineSettings(
        model_path=str(model_path), model_name=model, task=Task.CHAT, slots=slots,
        context_tokens=config.EngineConfig().context_tokens, threads=default_threads(), api_key=secrets.token_hex(16),
    )  # fmt: skip
    log = started.enter_context((started.folder / "engine.log").open("wb"))
    process = subprocess.Popen(EMBEDDED_ENGINE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    started.callback(rig.stop, process)
    assert process.stdin is not None
    assert process.stdout is not None
    started.enter_context(process.stdin)  # its end would end the engine
    started.enter_context(process.stdout)
    process.stdin.write(msgspec.json.encode(settings) + b"\n")
    process.stdin.flush()
    for line in process.stdout:
        report = msgspec.json.decode(line, type=EngineReport)
        if report.state == "listening":
            return process.pid, report.port, settings.api_key
    raise rig.BenchmarkFailed(
        f"the engine didn't start: {(started.folder / 'engine.log').read_text()[-2000:]}"
    )


async def batch(target: Target, *, streams: int, tokens: int) -> Sample:
    """That many streams begun together; tokens per second from the start until the last one has ended."""
    started_s = time.perf_counter()
    answers = [asyncio.ensure_future(_stream(target, number, tokens)) for number in range(streams)]
    counts, first_s = zip(*await asyncio.gather(*answers), strict=True)
    seconds = time.perf_counter() - started_s
    return {
        "tokens": sum(counts),
        "seconds": seconds,
        "tokens_per_s": sum(counts) / seconds,
        "ttft_s": statistics.median(first_s) - started_s,
    }


async def _stream(target: Target, number: int, tokens: int) -> tuple[int, float]:
    """One stream to its end: the tokens that the engine counted, and when the first event came."""
    content = f"Tell a long story, number {number}, about {_TOPICS[number % len(_TOPICS)]}."
    body = target.body(
        stream=True, messages=[{"role": "user", "content": content}], max_tokens=tokens,
        stream_options={"include_usage": True},
    )  # fmt: skip
    async with asyncio.timeout(ANSWER_LIMIT_S):
        reader, writer = await asyncio.open_connection(target.host, target.port)
        try:
            writer.write(target.request(body))
            answer, first_s = b"", 0.0
            while b"[DONE]" not in answer[-64:]:
                piece = await reader.read(65536)
                if not piece:
                    break
                answer += piece
                if not first_s and b"data: " in answer:
                    first_s = time.perf_counter()
        finally:
            writer.close()
    found = _COMPLETION_TOKENS.findall(answer)
    if not found:
        raise rig.BenchmarkFailed(f"port {target.port} gave no whole stream: {answer[-500:]!r}")
    return int(found[-1]), first_s


def throughput(models: Path, *, streams: int, tokens: int, rounds: int) -> dict[str, list[Sample]]:
    """Samples of both ways, in turns; who goes first changes with each round."""
    model = config.EngineConfig().chat_model
    stored = ModelStore(models).get(model)
    assert stored is not None, "the caller has pulled it"
    with rig.Rig() as started:
        engine_pid, port, engine_key = start_engine(started, stored.path, model=model, slots=streams)
        file = started.folder / "headrace.toml"
        file.write_text(
            f'[[upstreams]]\nurl = "http://127.0.0.1:{port}"\nslots = {streams}\napi_key = "env:{ENGINE_KEY}"\n'
        )
        provider, running = started.headrace(core=None, config=file, environment={ENGINE_KEY: engine_key})
        targets = {
            "direct": Target(port, model, engine_key),
            "headrace": Target(provider.port, model, provider.key()),
        }
        ours = {machine.ALL_CORES: (os.getpid(), engine_pid, *running.pids)}
        samples: dict[str, list[Sample]] = {name: [] for name in targets}
        for target in targets.values():
            rig.wait_for_answer(target, stream=True)
            uvloop.run(batch(target, streams=streams, tokens=min(tokens, 16)))
        for number in range(rounds):
            for name in sorted(targets, reverse=bool(number % 2)):
                with machine.Window((), ours) as window:
                    sample = uvloop.run(batch(targets[name], streams=streams, tokens=tokens))
                samples[name].append(sample | {"is_contended": window.is_contended})
    return samples


def cold_starts(models: Path, *, starts: int) -> list[dict[str, Any]]:
    """`headrace up` with its default models, started and stopped again; the stages are headrace's own account."""
    return [_cold_start(models) for _ in range(starts)]


def _cold_start(models: Path) -> dict[str, Any]:
    with rig.Rig() as started:
        data = started.folder / "data"
        data.mkdir()
        (data / "models").symlink_to(models)
        port = rig.free_port()
        command = [*rig.HEADRACE, "up", "--data", str(data), "--port", str(port), "--admin-port", "0"]
        started_s = time.perf_counter()
        started.start("headrace", command, port=port, core=None, path="/readyz")
        first_ready_s = time.perf_counter() - started_s
        provider = rig.Headrace(port, data)
        until_s = time.monotonic() + rig.START_LIMIT_S
        while True:
            found = {each["model"]: each["replicas"][0] for each in provider.status()["deployments"]}
            if all(replica["cold_start_s"] for replica in found.values()):
                break
            if time.monotonic() > until_s:
                raise rig.BenchmarkFailed(f"not all engines became ready: {found}")
            time.sleep(0.2)
    return {
        "first_ready_s": first_ready_s,
        "stages_s": {name: each["cold_start_s"] for name, each in found.items()},
    }


def pulled(data: Path) -> Path:
    """The model store of that data directory, with both default models in it."""
    for model in (config.EngineConfig().chat_model, config.EngineConfig().embedding_model):
        if ModelStore(data / "models").get(model) is None:
            command = [*rig.HEADRACE, "models", "pull", model, "--data", str(data)]
            if subprocess.run(command, check=False).returncode:
                raise rig.BenchmarkFailed(f"{model} can't be pulled")
    return data / "models"


def summary(samples: dict[str, list[Sample]], starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Medians; pairs of samples that strangers disturbed are left out where there are others."""
    pairs = list(zip(samples["direct"], samples["headrace"], strict=True))
    clean = [pair for pair in pairs if not any(sample["is_contended"] for sample in pair)]
    counted = clean or pairs
    ratios = [ours["tokens_per_s"] / direct["tokens_per_s"] for direct, ours in counted]
    found: dict[str, Any] = {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "clean": len(clean),
        "pairs": len(pairs),
    }
    for number, name in enumerate(("direct", "headrace")):
        found[name] = {
            fact: statistics.median(pair[number][fact] for pair in counted)
            for fact in ("tokens_per_s", "ttft_s")
        }
    if starts:
        found["first_ready_s"] = statistics.median(start["first_ready_s"] for start in starts)
        found["cold_start_s"] = {
            model: {
                stage: statistics.median(start["stages_s"][model][stage] for start in starts)
                for stage in stages
            }
            for model, stages in starts[0]["stages_s"].items()
        }
    return found


def report(found: dict[str, Any]) -> str:
    cells = [
        [name, table.number(found[name]["tokens_per_s"], 1), table.number(found[name]["ttft_s"] * 1000, 0)]
        for name in ("direct", "headrace")
    ]
    ratio, ratios = found["ratio"], found["ratios"]
    lines = [
        table.rows(["", "tokens/s", "TTFT ms"], cells),
        f"\n{'ok  ' if ratio >= RATIO_AIM else 'MISS'}  tokens/s of direct's: {ratio:.3f} "
        f"({min(ratios):.3f} to {max(ratios):.3f} in {len(ratios)} rounds), aim >= {RATIO_AIM}",
    ]
    if found["clean"] < found["pairs"]:
        lines.append(
            f"{found['pairs'] - found['clean']} of {found['pairs']} rounds are contended "
            f"(others took more than {machine.FOREIGN_SHARE_MAX:.0%} of a core) and "
            + ("left out" if found["clean"] else "there is no other")
        )
    if "cold_start_s" in found:
        rows = [
            [model, *(table.number(seconds, 2) for seconds in stages.values()), f"{sum(stages.values()):.2f}"]
            for model, stages in found["cold_start_s"].items()
        ]
        headings = ["cold start, s", *next(iter(found["cold_start_s"].values())), "total"]
        lines += ["", table.rows(headings, rows)]
        lines.append(f"from the command to /readyz: {found['first_ready_s']:.2f} s")
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.embedded", description=__doc__,
        epilog="example: python -m benchmarks.embedded --quick",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="2 rounds of 48 tokens, one cold start")
    parser.add_argument("--streams", type=int, default=4, help="at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, help="of each stream (default: 128)")
    parser.add_argument("--rounds", type=int, help="of both ways (default: 7)")
    parser.add_argument("--starts", type=int, help="cold starts (default: 3)")
    parser.add_argument(
        "--data", type=Path, help="data directory whose models are used, and pulled into if they are missing "
        "(default: that of `headrace up`)",
    )  # fmt: skip
    table.add_json_argument(parser, "embedded")
    arguments = parser.parse_args(argv)
    rounds, tokens, starts = (2, 48, 1) if arguments.quick else (7, 128, 3)
    rounds, tokens = arguments.rounds or rounds, arguments.tokens or tokens
    starts = starts if arguments.starts is None else arguments.starts
    facts = machine.facts()
    models = pulled(config.data_directory(str(arguments.data) if arguments.data else None))
    samples = throughput(models, streams=arguments.streams, tokens=tokens, rounds=rounds)
    started = cold_starts(models, starts=starts)
    found = summary(samples, started)
    print(report(found))
    path = table.write_json(
        arguments.json, "embedded", facts,
        {
            "streams": arguments.streams, "tokens": tokens, "threads": default_threads(), "summary": found,
            "samples": samples, "cold_starts": started,
        },
    )  # fmt: skip
    print(f"\n{path}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except rig.BenchmarkFailed as failure:
        sys.exit(str(failure))
