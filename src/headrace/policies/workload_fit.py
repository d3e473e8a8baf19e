"""Which workload makes requests like those of a trace? Distributions by the fewest parameters that describe them, and how well."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from headrace.core.workload import Arrived, Cancel, LengthKind, Turns, Workload
from headrace.policies import arrival_fit, length_fit, prefix_fit
from headrace.policies.arrival_fit import ArrivalFit
from headrace.policies.length_fit import KS_MAX, LengthFit


class WorkloadFit(msgspec.Struct, frozen=True):
    """A workload, and how far it is what was seen.

    Attributes:
        correlation: Of the logarithms of input and output lengths, which are drawn independently of each other; None where it
            can't be told.
        reuse: Share of the prompt tokens that an earlier prompt had in the same place; None where the trace doesn't say.
        notes: What its reader must know.
    """

    workload: Workload
    input_tokens: LengthFit
    output_tokens: LengthFit
    arrivals: ArrivalFit
    correlation: float | None
    reuse: float | None
    notes: tuple[str, ...]


def fit(trace: Iterable[Arrived], *, name: str, seed: int = 1) -> WorkloadFit:
    """A workload like that trace. Raises ValueError where it has too little in it."""
    rows = list(trace)
    conversations = _conversations(rows)
    first = [rows[turns[0]] for turns in conversations]
    inputs = _fit_named(first, "input_tokens")
    outputs = _fit_named(rows, "output_tokens")
    arrivals = arrival_fit.fit([row.at_s for row in rows])
    prefixes, reuse = prefix_fit.fit(first if len(first) < len(rows) else rows)
    turns = _turns(rows, conversations)
    workload = Workload(
        name,
        arrivals.chosen,
        inputs.chosen,
        outputs.chosen,
        prefixes,
        turns,
        _cancel(rows),
        stream_share=_share([row.is_streamed for row in rows if row.is_streamed is not None], default=1.0),
        seed=seed,
    )
    correlation = _correlation(rows)
    return WorkloadFit(
        workload,
        inputs,
        outputs,
        arrivals,
        correlation,
        reuse,
        tuple(_notes(inputs, outputs, arrivals, correlation)),
    )


def _notes(
    inputs: LengthFit, outputs: LengthFit, arrivals: ArrivalFit, correlation: float | None
) -> Iterable[str]:
    for what, found in (("input", inputs), ("output", outputs)):
        if found.chosen.kind is LengthKind.EMPIRICAL:
            yield (
                f"{what} lengths are not lognormal (KS {found.ks:.3f}, above {KS_MAX:g}): "
                f"{len(found.chosen.quantiles)} quantiles are used instead"
            )
    if correlation is not None and abs(correlation) > 0.3:
        yield f"input and output lengths go together ({correlation:+.2f}), which a workload can't say: replay the trace"
    if arrivals.together > 0.2:
        yield (
            f"{arrivals.together:.0%} of the requests came in the same moment as the one before: "
            "if times are rounded, their gaps look burstier than they are"
        )


def _fit_named(rows: Sequence[Arrived], name: str) -> LengthFit:
    lengths = [length for row in rows if (length := getattr(row, name)) is not None]
    if not lengths:
        raise ValueError(f"no request says its {name}")
    return length_fit.fit(lengths)


def _conversations(rows: Sequence[Arrived]) -> list[list[int]]:
    """The requests of each, by their place in the trace; one that names none is alone."""
    named: dict[str, list[int]] = {}
    found: list[list[int]] = []
    for index, row in enumerate(rows):
        if row.conversation and row.conversation in named:
            named[row.conversation].append(index)
            continue
        found.append([index])
        if row.conversation:
            named[row.conversation] = found[-1]
    return found


def _turns(rows: Sequence[Arrived], conversations: Sequence[Sequence[int]]) -> Turns:
    counts = [len(turns) for turns in conversations]
    if max(counts) == 1:
        return Turns()
    gaps, added = [], []
    for turns in conversations:
        for before, after in pairwise(rows[index] for index in turns):
            gaps.append(after.at_s - before.at_s)
            if before.input_tokens is None or before.output_tokens is None or after.input_tokens is None:
                continue
            if (more := after.input_tokens - before.input_tokens - before.output_tokens) > 0:
                added.append(more)
    return Turns(
        length_fit.fit(counts).chosen,
        round(math.fsum(gaps) / len(gaps), 2),
        length_fit.fit(added).chosen if added else Turns().tokens,
    )


def _cancel(rows: Sequence[Arrived]) -> Cancel:
    after = [row.cancel_after_s for row in rows if row.cancel_after_s is not None]
    if not after:
        return Cancel()
    return Cancel(round(len(after) / len(rows), 4), round(math.fsum(after) / len(after), 3))


def _share(found: Sequence[bool], *, default: float) -> float:
    return round(sum(found) / len(found), 4) if found else default


def _correlation(rows: Sequence[Arrived]) -> float | None:
    pairs = [
        (math.log(max(1, row.input_tokens)), math.log(max(1, row.output_tokens)))
        for row in rows
        if row.input_tokens is not None and row.output_tokens is not None
    ]
    if len(pairs) < 3:
        return None
    mean_x, mean_y = (math.fsum(each) / len(pairs) for each in zip(*pairs, strict=True))
    xx = math.fsum((x - mean_x) ** 2 for x, _ in pairs)
    yy = math.fsum((y - mean_y) ** 2 for _, y in pairs)
    xy = math.fsum((x - mean_x) * (y - mean_y) for x, y in pairs)
    return xy / math.sqrt(xx * yy) if xx and yy else None
