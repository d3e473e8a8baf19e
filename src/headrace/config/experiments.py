"""What does an experiment file say? The whole of it as an Experiment, or an error in the file's own words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import files, text
from headrace.core.experiments import Changes, Experiment, Server

FILE_BYTES_MAX = 256 * 1024
ARMS_MAX = 50

_FORMS = {"name": "1 to 63 of a-z, 0-9 and `._-`, a letter or digit first"}


def load(path: Path) -> Experiment:
    """That file. Raises ConfigError naming file, key and what it takes."""
    return parse(files.read(path, bytes_max=FILE_BYTES_MAX), file=str(path))


def parse(content: str, *, file: str) -> Experiment:
    """What the TOML says. Raises ConfigError; where several values can't be meant, it names all."""
    raw = text.table(content, file=file)
    experiment = text.convert(raw, Experiment, file=file, forms=_FORMS)
    text.refuse(_problems(experiment), file=file)
    return experiment


def changed(base: dict[str, Any], *changes: Changes) -> dict[str, Any]:
    """The tables of a file with those keys as they are in the changes; a table is changed key by key, all else as a whole."""
    result = dict(base)
    for change in changes:
        for key, value in change.items():
            old = result.get(key)
            is_table = isinstance(value, dict) and isinstance(old, dict)
            result[key] = changed(old, value) if is_table and old is not None else value
    return result


def _problems(experiment: Experiment) -> Iterator[str]:
    if bool(experiment.deployment) == (experiment.target is not None):
        yield "the baseline is either `deployment`, a file, or `[target]`, a server: give one of them"
    if not experiment.variables:
        yield "it varies nothing: give `[variables.NAME.LEVEL]` with the keys that are other than the baseline's"
    yield from _levels(experiment)
    if experiment.target is not None and experiment.fixed:
        yield "`fixed` is of a deployment; write what is other into `[target]`"
    load = experiment.load
    if load.rate_per_s is not None and load.concurrency is not None:
        yield "`load.rate_per_s` is of an open loop, `load.concurrency` of a closed one: give one of them"
    if load.warmup_s >= load.duration_s:
        yield f"`load.warmup_s` {load.warmup_s:g} leaves nothing of the {load.duration_s:g} s of `load.duration_s`"


def _levels(experiment: Experiment) -> Iterator[str]:
    arms = sum(map(len, experiment.variables.values()))
    if arms > ARMS_MAX:
        yield f"it has {arms} levels, of which {ARMS_MAX} are allowed: each takes a repetition in every block"
    seen: dict[bytes, str] = {}
    for variable, levels in experiment.variables.items():
        if not levels:
            yield f"`variables.{variable}` has no level"
        for level, changes in levels.items():
            where = f"variables.{variable}.{level}"
            if not changes:
                yield f"`{where}` changes nothing: the baseline is measured anyway"
            elif experiment.target is not None and (more := sorted(changes.keys() - set(_TARGET_KEYS))):
                yield f"`{where}.{more[0]}`: of a target there is {', '.join(_TARGET_KEYS)}"
            same = msgspec.json.encode(changes, order="sorted", enc_hook=str)
            if changes and (twin := seen.setdefault(same, where)) != where:
                yield f"`{where}` is the same as `{twin}`"


_TARGET_KEYS = Server.__struct_fields__
