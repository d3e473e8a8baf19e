"""What does a workload file say? The whole of it as a Workload, or an error in the file's own words."""

import hashlib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import files, text
from headrace.core.errors import ConfigError
from headrace.core.workload import SPAN_MIN_S, ArrivalKind, Arrivals, LengthKind, Lengths, Workload

FOLDER = "workloads"
FILE_BYTES_MAX = 256 * 1024

_FORMS = {
    "name": "1 to 63 of a-z, 0-9 and `._-`, a letter or digit first",
    "arrivals.sha256": "64 hexadecimal digits",
}

_OPEN = frozenset(ArrivalKind) - {ArrivalKind.CLOSED}
_MADE = _OPEN - {ArrivalKind.TRACE}
# Of the keys that not every kind of arrivals has: which do, and which of them must.
_ARRIVAL_KEYS: dict[str, tuple[frozenset[ArrivalKind], frozenset[ArrivalKind]]] = {
    "rate_per_s": (_OPEN, _MADE),
    "burstiness": (frozenset({ArrivalKind.GAMMA, ArrivalKind.DIURNAL, ArrivalKind.RAMP}), frozenset()),
    "rate_end_per_s": (frozenset({ArrivalKind.RAMP}), frozenset({ArrivalKind.RAMP})),
    "ramp_s": (frozenset({ArrivalKind.RAMP}), frozenset({ArrivalKind.RAMP})),
    "period_s": (frozenset({ArrivalKind.DIURNAL}), frozenset()),
    "swing": (frozenset({ArrivalKind.DIURNAL}), frozenset()),
    "modulation": (_MADE, frozenset()),
    "modulation_s": (_MADE, frozenset()),
    "busy_s": (_MADE, frozenset()),
    "idle_s": (_MADE, frozenset()),
    "idle_share": (_MADE, frozenset()),
    "concurrency": (frozenset({ArrivalKind.CLOSED}), frozenset({ArrivalKind.CLOSED})),
    "think_s": (frozenset({ArrivalKind.CLOSED}), frozenset()),
    "file": (frozenset({ArrivalKind.TRACE}), frozenset({ArrivalKind.TRACE})),
    "sha256": (frozenset({ArrivalKind.TRACE}), frozenset()),
}
_LENGTH_KEYS: dict[LengthKind, tuple[str, ...]] = {
    LengthKind.CONSTANT: ("value",),
    LengthKind.UNIFORM: (),
    LengthKind.LOGNORMAL: ("median", "sigma"),
    LengthKind.EMPIRICAL: ("quantiles",),
}
TURNS_MAX = 1000


def load(path: Path) -> Workload:
    """That file, with its trace's path as it is from here and the digest of its bytes.

    Raises: ConfigError naming file, key and what it takes.
    """
    workload = parse(files.read(path, bytes_max=FILE_BYTES_MAX), file=str(path))
    arrivals = workload.arrivals
    if arrivals.kind is not ArrivalKind.TRACE:
        return workload
    trace = path.parent / arrivals.file
    found = _sha256(trace, says=f"{path}: `arrivals.file`: ")
    if arrivals.sha256 not in ("", found):
        raise ConfigError(f"{path}: `arrivals.sha256`: {trace} has another, {found}")
    arrivals = msgspec.structs.replace(arrivals, file=str(trace), sha256=found)
    return msgspec.structs.replace(workload, arrivals=arrivals)


def of_trace(path: Path) -> Workload:
    """The workload that is the requests of that trace. Raises ConfigError where it can't be read."""
    name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).lstrip("._-")[:63] or "trace"
    arrivals = Arrivals(ArrivalKind.TRACE, file=str(path), sha256=_sha256(path))
    return Workload(name, arrivals)


def parse(content: str, *, file: str) -> Workload:
    """The workload that the TOML says. Raises ConfigError; where several things are wrong with the values, it names all."""
    raw = text.table(content, file=file)
    workload = text.convert(raw, Workload, file=file, forms=_FORMS)
    text.refuse(problems(workload), file=file)
    return workload


def toml(workload: Workload) -> str:
    """The text of a file that says this workload; defaults are left out."""
    tables: list[str] = []
    return "".join(_written(workload, "", tables)) + "".join(tables)


def inline(lengths: Lengths) -> str:
    """What stands between the braces of a table in one line."""
    return ", ".join(line.strip() for line in _written(lengths, "", []))


def _written(section: msgspec.Struct, path: str, tables: list[str]) -> Iterator[str]:
    for field in msgspec.structs.fields(section):
        value = getattr(section, field.name)
        if not field.required and value == field.default:
            continue
        if isinstance(value, Lengths) and path:
            yield f"{field.name} = {{ {inline(value)} }}\n"
        elif isinstance(value, msgspec.Struct):
            lines = "".join(_written(value, f"{path}{field.name}.", tables))
            tables.append(f"\n[{field.name}]\n{lines}")
        else:
            # Whole text, numbers, truths and lists of numbers are written in TOML as in JSON.
            yield f"{field.name} = {msgspec.json.encode(value).decode()}\n"


def problems(workload: Workload) -> list[str]:
    """Everything that can't be meant, in the order of the file; empty for one that may be used."""
    return [
        *_not_finite(workload),
        *_arrivals(workload.arrivals),
        *_lengths_needed(workload),
        *(found for where, lengths in _all_lengths(workload) for found in _lengths(where, lengths)),
        *_conversations(workload),
    ]


def _not_finite(value: Any, where: str = "") -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            yield from _not_finite(getattr(value, field.name), f"{where}{field.name}.")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"`{where[:-1]}` must be a number, got {value}"


def _arrivals(arrivals: Arrivals) -> Iterator[str]:
    kind = arrivals.kind
    for field in msgspec.structs.fields(Arrivals):
        if field.name not in _ARRIVAL_KEYS:
            continue
        takes, needs = _ARRIVAL_KEYS[field.name]
        is_given = getattr(arrivals, field.name) != field.default
        if is_given and kind not in takes:
            yield f"`arrivals.{field.name}` says nothing of arrivals of the kind {kind.value!r}; it is for {_listed(takes)}"
        elif kind in needs and not is_given:
            yield f"`arrivals.{field.name}` is required for arrivals of the kind {kind.value!r}"
    if (arrivals.busy_s is None) != (arrivals.idle_s is None):
        yield "`arrivals.busy_s` and `arrivals.idle_s` go together"
    for name in ("period_s", "modulation_s", "ramp_s", "busy_s", "idle_s"):
        if (span_s := getattr(arrivals, name)) is not None and span_s < SPAN_MIN_S:
            yield f"`arrivals.{name}` must be at least {SPAN_MIN_S:g}, got {span_s:g}"


def _listed(kinds: frozenset[ArrivalKind]) -> str:
    return ", ".join(repr(kind.value) for kind in ArrivalKind if kind in kinds)


def _lengths_needed(workload: Workload) -> Iterator[str]:
    if workload.arrivals.kind is not ArrivalKind.TRACE:  # which may say them itself
        for name in ("input_tokens", "output_tokens"):
            if getattr(workload, name) is None:
                yield f"`{name}` is required"


def _all_lengths(workload: Workload) -> Iterator[tuple[str, Lengths]]:
    for where, lengths in (
        ("input_tokens", workload.input_tokens),
        ("output_tokens", workload.output_tokens),
        ("prefixes.tokens", workload.prefixes.tokens),
        ("turns.count", workload.turns.count),
        ("turns.tokens", workload.turns.tokens),
    ):
        if lengths is not None:
            yield where, lengths


def _lengths(where: str, lengths: Lengths) -> Iterator[str]:
    for kind, names in _LENGTH_KEYS.items():
        for name in names:
            is_given = getattr(lengths, name) not in (None, ())
            if kind is lengths.kind and not is_given:
                yield f"`{where}.{name}` is required for lengths of the kind {kind.value!r}"
            elif kind is not lengths.kind and is_given:
                yield f"`{where}.{name}` says nothing of lengths of the kind {lengths.kind.value!r}; it is for {kind.value!r}"
    if lengths.minimum > lengths.maximum:
        yield f"`{where}.minimum` must be at most `{where}.maximum`, got {lengths.minimum} and {lengths.maximum}"
    if lengths.kind is LengthKind.EMPIRICAL and (
        len(lengths.quantiles) < 2 or list(lengths.quantiles) != sorted(lengths.quantiles)
    ):
        yield f"`{where}.quantiles` must be two lengths or more that rise, from the shortest to the longest"


def _conversations(workload: Workload) -> Iterator[str]:
    prefixes, cancel, turns = workload.prefixes, workload.cancel, workload.turns
    if bool(prefixes.groups) != (prefixes.tokens is not None):
        yield "`prefixes.groups` and `prefixes.tokens` go together"
    if (cancel.after_s is not None) + (cancel.after_tokens is not None) != (cancel.share > 0):
        yield "`cancel.share` needs one of `cancel.after_s` and `cancel.after_tokens`, and they need it"
    if workload.arrivals.kind is ArrivalKind.TRACE and turns != type(turns)():
        yield "`turns` says nothing of a trace, which has its own conversations"
    most = turns.count.value if turns.count.kind is LengthKind.CONSTANT else turns.count.maximum
    if turns.count.kind is LengthKind.EMPIRICAL and turns.count.quantiles:
        most = min(turns.count.maximum, turns.count.quantiles[-1])
    if (most or 0) > TURNS_MAX:
        yield f"`turns.count.maximum` must be at most {TURNS_MAX}, got {most}"


def _sha256(path: Path, *, says: str = "") -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ConfigError(f"{says}{path} cannot be read: {error.strerror}") from error
