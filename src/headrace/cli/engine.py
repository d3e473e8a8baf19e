"""`headrace engine scripted`: a deterministic engine for tests, demos and benchmarks."""

import argparse
from pathlib import Path
from typing import Any

import msgspec

from headrace.cli.common import command
from headrace.core.clock import SystemClock
from headrace.core.errors import ConfigError
from headrace.engines import scripted, scripted_faults
from headrace.engines.scripted_play import OWNER, Settings

_SCRIPT_HELP = """
SCRIPT is a list of `FAULT[:ARGUMENTS][@WHEN]`, separated by commas or semicolons. Events are those of a stream; a whole
answer is cut at its half for any EVENTS but 0. WHEN is N (only the N-th request), N-M, N+ (from the N-th on) or 1/K
(every K-th); without it a fault is for every request. Requests are counted from 1, since the script was set.

faults:
"""


def add(commands: Any) -> None:
    """Adds `engine` and its subcommands."""
    engine = command(
        commands,
        "engine",
        None,
        help="engines that come with headrace",
        example="headrace engine scripted --port 9001",
        with_data=False,
    )
    engines = engine.add_subparsers(dest="engine", metavar="ENGINE", required=True)
    added = command(
        engines,
        "scripted",
        _run_scripted,
        help="a deterministic OpenAI-compatible engine: fixed text at a fixed pace, faults by script",
        example="headrace engine scripted --port 9001 --itl-ms 20 --fault 'die:5@3, slow:200@1/10'",
        with_data=False,
    )
    added.epilog = f"{added.epilog}\n{_SCRIPT_HELP}{scripted_faults.table()}"
    added.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    added.add_argument("--port", type=int, required=True, help="port to listen on; 0 takes a free one")
    added.add_argument(
        "--model",
        dest="models",
        action="extend",
        nargs="+",
        metavar="NAME",
        help="models that it serves (default: scripted)",
    )
    added.add_argument(
        "--owned-by",
        default=OWNER,
        metavar="NAME",
        help=f"owner of its models, to pose as another server: vllm, llamacpp (default: {OWNER})",
    )
    _add_play(added)
    added.add_argument("--log", type=Path, metavar="FILE", help="append one JSON line per execution")


def _add_play(added: argparse.ArgumentParser) -> None:
    """What it says, how fast, and what goes wrong."""
    added.add_argument(
        "--slots", type=int, default=64, help="requests at once; more wait inside (default: 64)"
    )
    added.add_argument(
        "--ttft-ms",
        type=float,
        default=0.0,
        metavar="MS",
        help="time to the first token (default: 0)",
    )
    added.add_argument(
        "--itl-ms", type=float, default=0.0, metavar="MS", help="time between tokens (default: 0)"
    )
    added.add_argument("--tokens", type=int, default=20, help="tokens of an answer (default: 20)")
    said = added.add_mutually_exclusive_group()
    said.add_argument("--answer", metavar="TEXT", help="what it says to every prompt, instead of words")
    said.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help='what it says, by what stands in the prompt: a JSON object, {"how long": "14 days"}; the first that does counts',
    )
    added.add_argument(
        "--prefix-cache",
        type=int,
        default=0,
        metavar="TOKENS",
        help="keep that much of prompts, and find it again by prefix and `cache_salt` (default: nothing)",
    )
    added.add_argument(
        "--prefill-tokens-per-s",
        type=float,
        default=0.0,
        metavar="RATE",
        help="how fast it reads a prompt, but for what is cached, before the first token (default: no time)",
    )
    added.add_argument("--fault", default="", metavar="SCRIPT", help="what goes wrong, and when; see below")


def _run_scripted(arguments: argparse.Namespace) -> None:
    for option, value, least, most in (
        ("--port", arguments.port, 0, 65_535),
        ("--slots", arguments.slots, 1, 1_000_000),
        ("--ttft-ms", arguments.ttft_ms, 0, 86_400_000),
        ("--itl-ms", arguments.itl_ms, 0, 86_400_000),
        ("--tokens", arguments.tokens, 0, 1_000_000),
        ("--prefix-cache", arguments.prefix_cache, 0, 100_000_000),
        ("--prefill-tokens-per-s", arguments.prefill_tokens_per_s, 0, 1_000_000_000),
    ):
        if not least <= value <= most:
            raise ConfigError(f"{option} must be between {least} and {most}, got {value}")
    settings = Settings(
        host=arguments.host,
        port=arguments.port,
        models=tuple(arguments.models or ("scripted",)),
        owner=arguments.owned_by,
        slots=arguments.slots,
        ttft_s=arguments.ttft_ms / 1000,
        itl_s=arguments.itl_ms / 1000,
        tokens=arguments.tokens,
        answers=_answers(arguments),
        prefix_cache_tokens=arguments.prefix_cache,
        prefill_tokens_per_s=arguments.prefill_tokens_per_s,
        faults=scripted_faults.parse(arguments.fault),
        log=arguments.log,
    )
    scripted.run(settings, clock=SystemClock(), on_ready=_say_ready)


def _answers(arguments: argparse.Namespace) -> dict[str, str]:
    if arguments.answers is None:
        return {} if arguments.answer is None else {"": arguments.answer}
    try:
        return msgspec.json.decode(arguments.answers.read_bytes(), type=dict[str, str])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"--answers: {arguments.answers}: {error}; it must be a JSON object of texts by what stands in the prompt"
        ) from error


def _say_ready(url: str) -> None:
    print(f"scripted engine ready on {url}", flush=True)
