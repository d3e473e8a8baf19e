"""What is offered, and what does that rest on? The card of a certified deployment: signed facts, for a customer and an engineer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from headrace.core import moments, money
from headrace.core.deployments import DeploymentSpec
from headrace.core.errors import ConfigError
from headrace.core.slo import Slo
from headrace.core.verdicts import Verdict
from headrace.evidence.certify_load import HELD, NORMAL_LOAD, QUALIFIED, RATE, SUPPORTED
from headrace.evidence.certify_quality import QUALITY
from headrace.policies import certification
from headrace.policies.certification import Bounds, StepReport
from headrace.stores import card_key
from headrace.stores.card_key import CardKey

FORM = 1
DAY_S = 86_400.0
CARD_BYTES_MAX = 4 * 1024 * 1024


class Signature(msgspec.Struct, frozen=True):
    """Of the canonical JSON of all of the card but this.

    Attributes:
        key: The public half, Ed25519, base64. It proves that nothing was changed; whose it is, the reader must know.
    """

    algorithm: str = ""
    key: str = ""
    value: str = ""


class Cost(msgspec.Struct, frozen=True):
    """What a qualified result costs us, at the supported load.

    Attributes:
        per_hour: Of all replicas that the deployment keeps ready, by its own [budget].
        qualified_per_hour: Answers within every promise, and right where a quality was measured against a floor.
        per_qualified_result: An exact decimal; "" where nothing says what a replica costs, or nothing qualified.
    """

    currency: str
    per_hour: str
    qualified_per_hour: float
    per_qualified_result: str


class ServiceCard(msgspec.Struct, frozen=True):
    """The card. Every field is plain data; times are UTC.

    Attributes:
        verdict: Of all steps that were made.
        is_complete: Every step was made, in its long form; a card that isn't says nothing of what it lacks.
        supported: The load for which it holds, and how much more there was, by name.
        quality: Share of the acceptance set with its bounds, by name; empty where it wasn't asked.
        limits: What it is not good for, a sentence each.
        stack: What exactly was certified, by name; with another one the card is void.
        promises: The SLO that normal load was judged by.
        repeat: The command that makes it again.
    """

    form: int
    deployment: str
    verdict: Verdict
    is_complete: bool
    issued: str
    valid_until: str
    took_s: float
    repeat: str
    supported: dict[str, float]
    quality: dict[str, float]
    cost: Cost | None
    limits: tuple[str, ...]
    stack: dict[str, str]
    promises: Slo
    bounds: Bounds
    steps: tuple[StepReport, ...]
    signature: Signature = Signature()

    @property
    def may_be_offered(self) -> bool:
        return self.verdict is Verdict.PASS and self.is_complete


@dataclass(frozen=True, slots=True)
class Made:
    """How a certification was made, for its card. `all_steps` are those that a whole one has."""

    deployment: str
    spec: DeploymentSpec | None
    slo: Slo
    bounds: Bounds
    known: Mapping[str, float]
    stack: Mapping[str, str]
    repeat: str
    all_steps: Sequence[str]
    is_short: bool
    began_wall_s: float
    took_s: float
    valid_days: float


def issue(steps: Sequence[StepReport], made: Made, key: CardKey) -> ServiceCard:
    """The card of these steps, signed."""
    known = _supported(steps, made)
    ended_wall_s = made.began_wall_s + made.took_s
    names = {step.name for step in steps if step.verdict is not None}
    card = ServiceCard(
        form=FORM,
        deployment=made.deployment,
        verdict=certification.overall(steps),
        is_complete=not made.is_short and not _left_out(steps, made),
        issued=moments.utc(ended_wall_s),
        valid_until=moments.utc(ended_wall_s + made.valid_days * DAY_S),
        took_s=round(made.took_s, 1),
        repeat=made.repeat,
        supported={name: round(known[key], 4) for name, key in SUPPORTED.items() if key in known},
        quality={name: known[name] for name in QUALITY if name in known} if "quality" in names else {},
        cost=_cost(made, known),
        limits=tuple(_limits(steps, made)),
        stack=dict(made.stack),
        promises=made.slo,
        bounds=made.bounds,
        steps=tuple(steps),
    )
    # As a reader gets it back from its JSON: a whole number that stands for a float is a float from here on.
    card = msgspec.json.decode(msgspec.json.encode(card), type=ServiceCard)
    return msgspec.structs.replace(
        card, signature=Signature(card_key.ALGORITHM, key.public, key.sign(canonical(card)))
    )


def canonical(card: ServiceCard) -> bytes:
    """What is signed: JSON without blanks, members in the order of their names, and without the signature."""
    unsigned = msgspec.to_builtins(msgspec.structs.replace(card, signature=Signature()))
    del unsigned["signature"]
    return msgspec.json.encode(unsigned, order="deterministic")


def read(content: bytes, *, name: str) -> ServiceCard:
    """Raises ConfigError for what is no card."""
    try:
        card = msgspec.json.decode(content, type=ServiceCard)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name}: not a service card: {error}") from error
    if card.form != FORM:
        raise ConfigError(f"{name}: a card of form {card.form}; this version reads form {FORM}")
    return card


def is_genuine(card: ServiceCard) -> bool:
    """Nothing of it was changed since the holder of its key signed it."""
    signature = card.signature
    return signature.algorithm == card_key.ALGORITHM and card_key.is_signed(
        canonical(card), public=signature.key, signature=signature.value
    )


def is_over(card: ServiceCard, *, now_wall_s: float) -> bool:
    """Its time has passed."""
    return now_wall_s > moments.unix_s(card.valid_until)


def as_json(card: ServiceCard) -> bytes:
    return msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n"


_WRONG = {
    Verdict.FAIL: "failed",
    Verdict.INCONCLUSIVE: "showed too little",
    Verdict.ERROR: "could not be made",
}


def _left_out(steps: Sequence[StepReport], made: Made) -> list[str]:
    """Steps that were not made at all; one that doesn't fit the deployment was."""
    asked = {step.name for step in steps}
    return [name for name in made.all_steps if name not in asked]


def _supported(steps: Sequence[StepReport], made: Made) -> dict[str, float]:
    """What was measured, without a load for which the promises weren't shown to hold."""
    is_held = any(step.name == NORMAL_LOAD and step.verdict is Verdict.PASS for step in steps)
    return {key: value for key, value in made.known.items() if is_held or key not in HELD}


def _cost(made: Made, known: Mapping[str, float]) -> Cost | None:
    spec = made.spec
    if spec is None or RATE not in known:
        return None
    per_hour = spec.budget.replica_hour_pico * max(1, spec.scale.min)
    # Without a floor nobody has said which answers are good enough, and a whole one in time counts.
    right = known.get("share", 1.0) if made.bounds.quality_floor else 1.0
    qualified = known[RATE] * 3600 * known.get(QUALIFIED, 0.0) * right
    each = money.format_amount(round(per_hour / qualified)) if per_hour and qualified >= 1 else ""
    return Cost(spec.budget.currency, money.format_amount(per_hour), round(qualified, 1), each)


def _limits(steps: Sequence[StepReport], made: Made) -> Iterator[str]:
    spec = made.spec
    if made.is_short:
        yield "Made in its short form: fewer samples, so it shows less, and doesn't count as a certification."
    for step in steps:
        if step.verdict is None:
            yield f"{step.name} was not made: {step.detail}."
        elif step.verdict is not Verdict.PASS:
            yield f"{step.name} {_WRONG[step.verdict]}: {step.detail}."
    if left_out := _left_out(steps, made):
        yield f"Not asked for, and so not known: {', '.join(left_out)}."
    if spec is None:
        yield "Made from outside, on a service that others run: what it runs isn't pinned."
        return
    if spec.scale.min <= 1:
        yield "One replica is kept ready: while it is lost, callers wait or are refused until it is back."
    if spec.revision.args.context_tokens:
        yield f"A request has at most {spec.revision.args.context_tokens} tokens, prompt and answer together."
    if "share" in made.known:
        floor = made.bounds.quality_floor
        held = f"at least {floor:.0%} were asked for" if floor else "no floor was asked for"
        yield f"Of the acceptance set, {made.known['share']:.1%} of the answers were right; {held}."
    if not spec.budget.replica_hour_pico:
        yield "What a replica costs is not stated in the deployment's `budget.replica_hour`, so no cost is."
    yield "Measured on one machine with the generator of the load beside it, in a service of its own."
