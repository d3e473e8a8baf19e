"""How does a service card read? The same sections as a page, as Markdown, and in a terminal."""

from collections.abc import Iterator

from headrace.core.slo import Metric, Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import page, tables
from headrace.evidence.page import Section, Table
from headrace.evidence.service_card import ServiceCard
from headrace.policies import certification
from headrace.policies.certification import Figure, StepReport
from headrace.stores import card_key

# What the card has of the supported load: in words, and in which unit.
_SUPPORTED = {
    "requests_per_s": ("the promises hold up to", "requests/s"),
    "input_tokens_median": ("of inputs of, in the median", "tokens"),
    "output_tokens_median": ("and answers of, in the median", "tokens"),
    "ttft_p95_s": ("19 of 20 callers then had their first token within", "s"),
    "total_p95_s": ("and their whole answer within", "s"),
    "qualified_share": ("requests within every promise at once", "%"),
    "requests_per_s_at_best": ("at its best, without a promise", "requests/s"),
    "input_tokens_max": ("longest input that was tried", "tokens"),
    "long_ttft_s": ("its first token came after at most", "s"),
}
_PROMISED = {
    Metric.TTFT: "the first token within",
    Metric.ITL: "no pause longer than",
    Metric.TPOT: "each further token, on average, within",
    Metric.TOTAL: "the whole answer within",
}
_SHARES = {"share": "answered rightly", "at_least": "at least", "at_most": "at most", "floor": "asked for"}


def title(card: ServiceCard) -> str:
    return f"Service card: {card.deployment}"


def html(card: ServiceCard) -> str:
    return page.page(title(card), sections(card), lead=_lead(card), facts=_facts(card), foot=_foot(card))


def markdown(card: ServiceCard) -> str:
    lead = [*_lead(card), *(f"- {name}: {value}" for name, value in _facts(card))]
    # One list, not a paragraph for each of its items.
    text = tables.markdown(sections(card), title=title(card), lead=[lead[0], "\n".join(lead[1:])])
    return f"{text}\n\n" + "\n\n".join(_foot(card)) + "\n"


def sections(card: ServiceCard) -> list[Section]:
    """From what a customer asks first to what an engineer repeats."""
    return [
        Section("May it be offered?", verdict=card.verdict, says=_says(card)),
        *_supported(card),
        Section(
            "Promises",
            ["Each counts every request that was due, whatever became of it, from the moment it was due."],
            [_promises(card.promises)],
        ),
        *_quality(card),
        *_cost(card),
        Section("Known limits", tables=[Table(("limit",), [(limit,) for limit in card.limits], left=1)]),
        Section("Steps", tables=[_summary(card)]),
        *(_step(step) for step in card.steps),
        Section(
            "What it holds for",
            ["Exactly this stack, on such hardware; with any other the card is void."],
            [Table(("part", "pinned"), [(name, f"`{value}`") for name, value in card.stack.items()], left=2)],
        ),
    ]


def _lead(card: ServiceCard) -> list[str]:
    return [
        "What this service was shown to do: its acceptance path, each step with its figures, their bounds, and a verdict."
    ]


def _facts(card: ServiceCard) -> list[tuple[str, str]]:
    return [
        ("may be offered", "yes" if card.may_be_offered else "no"),
        ("issued", card.issued),
        ("valid until", card.valid_until),
        ("took", f"{card.took_s:.0f} s"),
        ("signed with", card_key.fingerprint(card.signature.key)),
    ]


def _foot(card: ServiceCard) -> list[str]:
    return [
        f"Made by `{card.repeat}`.",
        "The JSON beside this page is what is signed: `headrace certify verify service-card.json`.",
    ]


def _says(card: ServiceCard) -> str:
    if card.may_be_offered:
        return "it may: every step was made, and each met its bounds"
    if card.verdict is Verdict.PASS:
        return "not by this card: each step that was made met its bounds, but not all were made in full"
    wrong = ", ".join(step.name for step in card.steps if step.verdict is card.verdict)
    return f"not as it is: {wrong or 'no step was made'}"


def _supported(card: ServiceCard) -> Iterator[Section]:
    """In the order of the words; what isn't known has no row."""
    rows = [
        (words, _amount(card.supported[name], unit))
        for name, (words, unit) in _SUPPORTED.items()
        if name in card.supported
    ]
    if rows:
        yield Section("Supported load", tables=[Table(("", "measured"), rows, left=1)])


def _promises(slo: Slo) -> Table:
    rows = [
        (f"{_PROMISED[each.metric]} {each.within_s:g} s", _amount(each.share, "%")) for each in slo.objectives
    ]
    if slo.failure_share_max is not None:
        rows.insert(0, ("a whole answer", _amount(1 - slo.failure_share_max, "%")))
    return Table(("promise", "of requests, at least"), rows, left=1)


def _amount(value: float, unit: str) -> str:
    if unit == "%":
        return f"{100 * value:.3g} %"
    return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _quality(card: ServiceCard) -> Iterator[Section]:
    if card.quality:
        rows = [
            (words, _amount(card.quality[name], "%"))
            for name, words in _SHARES.items()
            if card.quality.get(name)
        ]
        rows.append(("cases", f"{card.quality.get('cases', 0.0):g}"))
        yield Section("Quality", tables=[Table(("of the sealed acceptance set", "share"), rows, left=1)])


def _cost(card: ServiceCard) -> Iterator[Section]:
    cost = card.cost
    if cost is not None:
        rows = [
            ("all replicas that are kept ready, an hour", f"{cost.per_hour} {cost.currency}"),
            ("qualified results an hour, at the supported load", f"{cost.qualified_per_hour:g}"),
            (
                "cost of a qualified result",
                f"{cost.per_qualified_result} {cost.currency}" if cost.per_qualified_result else "not stated",
            ),
        ]
        yield Section("Cost", tables=[Table(("", "value"), rows, left=1)])


def _summary(card: ServiceCard) -> Table:
    rows = [(step.name, step.question, _verdict(step), f"{step.took_s:.1f}") for step in card.steps]
    return Table(("step", "question", "verdict", "s"), rows, left=3)


def _step(step: StepReport) -> Section:
    figures = [_row(figure) for figure in step.figures]
    shown = [Table(("figure", "measured", "bound", "verdict", "samples"), figures, left=4)] if figures else []
    prose = [step.question, *([f"Not made: {step.detail}."] if step.verdict is None else []), *step.notes]
    return Section(f"Step {step.name}", prose, shown, verdict=step.verdict, says=step.detail)


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    measured = certification.in_words(figure)
    if figure.low is not None and figure.high is not None and figure.low != figure.high:
        measured += f" ({figure.low:.4g} to {figure.high:.4g})"
    verdict = page.WORDS[figure.verdict] if figure.verdict is not None else ""
    return figure.what, measured, certification.bound_in_words(figure), verdict, str(figure.samples or "")


def _verdict(step: StepReport) -> str:
    return page.WORDS[step.verdict] if step.verdict is not None else "not made"
