"""What does a file in `slos/` say? The whole of it as an Slo, or an error in the file's own words."""

import tomllib
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from headrace.config import files, text
from headrace.core import money
from headrace.core.errors import ConfigError
from headrace.core.slo import Metric, Objective, Slo

FOLDER = "slos"
FILE_BYTES_MAX = 64 * 1024

_FORMS = {"deployment": "1 to 63 of a-z, 0-9 and `._-`, a letter or digit first"}


def find(given: Sequence[str]) -> list[Path]:
    """The files that are meant: those given, and all in a folder that is given; without any, all in `slos/`.

    Raises: ConfigError where there is none.
    """
    return files.find(given, folder=FOLDER, kind="SLO", see="docs/concepts/slo.md")


def named(given: str) -> Path:
    """A path as it is; a name as that of a file in `slos/`. Raises ConfigError with the names that there are."""
    if "/" in given or given.endswith(".toml"):
        return Path(given)
    folder = Path(FOLDER)
    if (file := folder / f"{given}.toml").is_file():
        return file
    known = ", ".join(sorted(each.stem for each in folder.glob("*.toml"))) or "none"
    raise ConfigError(f"no SLO {given!r} in {folder}/: give a .toml file, or one of those there: {known}")


def load(path: Path) -> Slo:
    """Raises ConfigError naming file, key and what it takes."""
    return parse(files.read(path, bytes_max=FILE_BYTES_MAX), file=str(path))


def parse(content: str, *, file: str) -> Slo:
    """What the TOML says. Raises ConfigError; where several values can't be meant, it names all."""
    raw = text.table(content, file=file)
    if isinstance(cost := raw.get("cost"), dict):
        _keep_digits(cost, content)
    slo = text.convert(raw, Slo, file=file, forms=_FORMS)
    text.refuse(_problems(slo), file=file)
    return slo


def _keep_digits(cost: dict[str, Any], content: str) -> None:
    """An amount that is written as a number becomes its digits: a binary fraction is no amount of money."""
    name = "per_qualified_result_max"
    written = tomllib.loads(content, parse_float=str)["cost"].get(name)
    if isinstance(written, str | int) and not isinstance(written, bool):
        cost[name] = str(written)


def _problems(slo: Slo) -> Iterator[str]:
    """Everything that can't be meant."""
    if not slo.objectives and slo.failure_share_max is None:
        yield "it promises nothing: give `failure_share_max`, or an `[[objectives]]` with metric, within_ms and share"
    yield from _at_odds(slo)
    try:
        cost = slo.cost.max_pico
    except ValueError as error:
        yield f"`cost.per_qualified_result_max`: {error}"
    else:
        if cost is not None and cost <= 0:
            yield "`cost.per_qualified_result_max` must be above 0"
    if not money.is_currency(slo.cost.currency):
        yield f"`cost.currency` must be three capital letters, got {slo.cost.currency!r}"


def _at_odds(slo: Slo) -> Iterator[str]:
    """Of one metric, a wider bound is worth something only with a larger share."""
    by_metric = sorted(slo.objectives, key=_place)
    for metric, group in groupby(by_metric, key=lambda objective: objective.metric):
        ordered = list(group)
        for tight, wide in pairwise(ordered):
            if tight.within_ms == wide.within_ms:
                yield f"`objectives`: {metric} within {tight.within_ms:g} ms is promised twice; keep one"
            elif tight.share >= wide.share:
                yield (
                    f"`objectives`: {metric} within {wide.within_ms:g} ms says nothing with share {wide.share:g}, as"
                    f" {tight.share:g} are within {tight.within_ms:g} ms already; raise its share, or drop it"
                )
    if slo.failure_share_max is None:
        return
    for objective in slo.objectives:
        if objective.miss_share_max < slo.failure_share_max:
            yield (
                f"`failure_share_max` {slo.failure_share_max:g} is more than the {objective.miss_share_max:g} that"
                f" {objective.name} leaves: what fails is within no bound; lower it"
            )


def _place(objective: Objective) -> tuple[Metric, float]:
    return objective.metric, objective.within_ms
