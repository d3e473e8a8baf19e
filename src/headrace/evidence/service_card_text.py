"""How does a service card read? The same sections as a page, as Markdown, and in a terminal."""

from collections.abc import Iterator

from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import page, tables
from headrace.evidence.page import Section, Table
from headrace.evidence.service_card import ServiceCard
from headrace.policies import certification
from headrace.policies.certification import Figure, StepReport
from headrace.stores import card_key

_NAMES = {
    "requests_per_s": "requests per second that the promises hold for",
    "requests_per_s_at_best": "requests per second at its best, without promises",
    "input_tokens_max": "longest input that was tried, in tokens",
    "qualified_share": "share of requests within every promise at once",
}


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
        Section("Supported load", tables=[Table(("", "value"), list(_supported(card)), left=1)]),
        Section(
            "Promises", ["Each over every request that was meant to be sent."], [_promises(card.promises)]
        ),
        *_quality(card),
        *_cost(card),
        Section("Known limits", [f"- {limit}" for limit in card.limits]),
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
        "What this service was shown to do, by a run of its whole acceptance path, each step with its figure, its bound and its verdict."
    ]


def _facts(card: ServiceCard) -> list[tuple[str, str]]:
    return [
        ("verdict", page.WORDS[card.verdict]),
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
        return "every step was made, and each met its bounds"
    if card.verdict is Verdict.PASS:
        return "every step that was made met its bounds, but not all were made in full"
    wrong = [step.name for step in card.steps if step.verdict is card.verdict]
    return ", ".join(wrong) or "no step was made"


def _supported(card: ServiceCard) -> Iterator[tuple[str, str]]:
    for name, value in card.supported.items():
        yield _NAMES.get(name, name), f"{value:.4g}"


def _promises(slo: Slo) -> Table:
    rows = [(each.name, f"{each.share:.4g}") for each in slo.objectives]
    if slo.failure_share_max is not None:
        rows.insert(0, ("answered whole", f"{1 - slo.failure_share_max:.4g}"))
    return Table(("promise", "of requests, at least"), rows, left=1)


def _quality(card: ServiceCard) -> Iterator[Section]:
    if card.quality:
        rows = [(name, f"{value:.4g}") for name, value in card.quality.items()]
        yield Section("Quality", tables=[Table(("of the sealed acceptance set", "value"), rows, left=1)])


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
    notes = [f"- {note}" for note in step.notes]
    prose = [step.question, *([f"Not made: {step.detail}."] if step.verdict is None else []), *notes]
    return Section(f"Step `{step.name}`", prose, shown, verdict=step.verdict, says=step.detail)


def _row(figure: Figure) -> tuple[str, str, str, str, str]:
    measured = certification.in_words(figure)
    if figure.low is not None and figure.high is not None and figure.low != figure.high:
        measured += f" ({figure.low:.4g} to {figure.high:.4g})"
    verdict = page.WORDS[figure.verdict] if figure.verdict is not None else ""
    return figure.what, measured, certification.bound_in_words(figure), verdict, str(figure.samples or "")


def _verdict(step: StepReport) -> str:
    return page.WORDS[step.verdict] if step.verdict is not None else "not made"
