"""What does the service do under load: at its best, under normal load, in a burst, with long inputs, and with far too much?"""

import asyncio
import functools
import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.core.slo import Slo
from headrace.evidence.certify import NotMade, Stage
from headrace.evidence.certify_caller import Reply, at_once
from headrace.evidence.certify_tenants import words
from headrace.evidence.drill_instance import DrillError
from headrace.policies import quantiles
from headrace.policies.certification import (
    ALPHA,
    Figure,
    at_least,
    at_most,
    promise_kept,
    quantile_at_most,
    share_at_most,
    told,
)
from headrace.policies.slo import Fate, Seen, attainment

PACE, SERVICE_S, RATE, QUALIFIED = "pace_per_s", "service_s", "rate_per_s", "qualified_share"
INPUT_TOKENS = "input_tokens"
_WORDS = ("river", "mill", "stone", "water", "gate", "wheel", "grain", "miller")
INPUT_WORDS, OUTPUT_TOKENS = 50, 16
_LONG_WORDS = 6000
_OPEN_MAX = 400
_PATIENCE_S = 60.0
# What it takes longer than this to show is left open.
_LOAD_MAX_S = 300.0
_RATE_MAX_PER_S = 250.0
_OVERLOAD_TIMES, _DEADLINE_TIMES = 5.0, 6.0
_BURST_TIMES = 3
_CONCURRENCY_MAX = 64


@dataclass(frozen=True, slots=True)
class Sent:
    """One request, with the time from when it was due instead of when it was sent; None where it never was."""

    late_s: float
    reply: Reply | None

    @property
    def ttft_s(self) -> float | None:
        return None if self.reply is None or self.reply.ttft_s is None else self.late_s + self.reply.ttft_s

    @property
    def took_s(self) -> float:
        return math.inf if self.reply is None else self.late_s + self.reply.took_s

    @property
    def tpot_s(self) -> float | None:
        """Between one output token and the next; None where there were too few, or the answer came as one."""
        reply = self.reply
        if reply is None or not reply.events or reply.ttft_s is None:
            return None
        tokens = reply.usage().get("completion_tokens", 0)
        return (reply.took_s - reply.ttft_s) / (tokens - 1) if tokens > 1 else None

    @property
    def is_answered(self) -> bool:
        return self.reply is not None and self.reply.is_answered

    @property
    def is_streamed(self) -> bool:
        return self.reply is not None and bool(self.reply.events)

    @property
    def is_refused(self) -> bool:
        return self.reply is not None and self.reply.status in (429, 503)


def _text(chance: random.Random, count: int) -> str:
    return "".join(f"{chance.choice(_WORDS)} " for _ in range(count)) + "What is it about?"


def _prompts(stage: Stage) -> Iterator[str]:
    """Lengths as of documents: most are short, a few are long."""
    chance = random.Random(stage.terms.seed)
    while True:
        yield _text(
            chance,
            words(
                stage, max(8, min(4 * INPUT_WORDS, round(chance.lognormvariate(math.log(INPUT_WORDS), 0.6))))
            ),
        )


async def find_pace(stage: Stage) -> None:
    """As many requests at once as there are slots, one after the other: what the service does at its best."""
    slots = await _slots(stage)
    prompts, clock = _prompts(stage), stage.clock
    began_s = clock.now_s()
    replies: list[Reply] = []
    until_s = began_s + stage.size.load_s / 3

    async def one_after_the_other() -> None:
        while clock.now_s() < until_s:
            replies.append(await _ask(stage, next(prompts), number=len(replies)))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(slots):
            tasks.create_task(one_after_the_other())
    took_s = clock.now_s() - began_s
    answered = [reply for reply in replies if reply.is_answered]
    if not answered:
        raise DrillError(f"nothing is answered: {replies[0].status} {replies[0].reason}")
    stage.known[PACE] = len(answered) / took_s
    stage.known[SERVICE_S] = sum(reply.took_s for reply in answered) / len(answered)
    tokens = sum(reply.usage().get("completion_tokens", 0) for reply in answered)
    stage.add(
        told("requests at once", slots),
        told("requests at its best", stage.known[PACE], "/s", samples=len(answered)),
        told("output tokens at its best", tokens / took_s, "/s"),
        share_at_most(
            "of them not answered whole",
            len(replies) - len(answered),
            len(replies),
            stage.bounds.failure_share,
        )
        if len(replies) >= stage.size.samples
        else told("of them not answered whole", float(len(replies) - len(answered))),
    )


async def carry_normal_load(stage: Stage) -> None:
    """Requests at random moments, each due at its own whatever became of those before; judged by the promises made of it."""
    slo, rate = stage.terms.slo, await _normal_rate(stage)
    duration_s = min(_LOAD_MAX_S, max(stage.size.load_s, stage.size.samples / rate))
    sent = await _open_loop(stage, rate_per_s=rate, duration_s=duration_s)
    kept = attainment(slo, [_seen(each) for each in sent], alpha=ALPHA)
    qualified = kept.qualified
    stage.known[RATE] = rate
    stage.known[QUALIFIED] = qualified.good / max(1, qualified.counted)
    stage.add(
        told("requests meant to be sent", kept.intended),
        told("rate", rate, "/s"),
        *(promise_kept(each) for each in kept.kept),
        told("within every promise at once", stage.known[QUALIFIED], samples=qualified.counted),
        *_told_quantiles(sent),
    )
    stage.notes.append(
        f"inputs of {INPUT_WORDS} words in the median, a few of {4 * INPUT_WORDS}, and answers of at most {OUTPUT_TOKENS}"
        " tokens; three of four are streamed"
    )
    stage.notes += _reasons(sent)
    for each in kept.kept:
        if each.requests_needed:
            stage.notes.append(
                f"{each.promise.name}: it takes {each.requests_needed} requests without a further miss"
            )


def _told_quantiles(sent: Sequence[Sent]) -> Iterator[Figure]:
    answered = [each for each in sent if each.is_answered]
    for what, values in (
        ("time to the first token", [each.ttft_s for each in answered if each.is_streamed]),
        ("time of an output token", [each.tpot_s for each in answered]),
        ("time of an answer", [each.took_s for each in answered]),
    ):
        found = sorted(value for value in values if value is not None)
        for name, quantile in (("median", 0.5), ("p95", 0.95)):
            if found:
                yield told(
                    f"{what}, {name}", quantiles.nearest_rank(found, quantile), "s", samples=len(found)
                )


def _seen(sent: Sent) -> Seen:
    """As a promise sees it."""
    reply = sent.reply
    if reply is None:
        return Seen(Fate.UNSENT)
    usage = reply.usage()
    if sent.is_answered:
        fate = Fate.WHOLE
    elif sent.is_refused:
        fate = Fate.REFUSED
    else:
        fate = Fate.BROKEN if reply.status == 200 else Fate.FAILED
    return Seen(
        fate,
        sent.took_s,
        sent.ttft_s if sent.is_streamed else None,
        tpot_s=sent.tpot_s,
        input_tokens=usage.get("prompt_tokens"),
        output_tokens=usage.get("completion_tokens"),
    )


async def take_burst(stage: Stage) -> None:
    """Several times what fits, at one moment; and how long until a single caller is served in time again."""
    count = _BURST_TIMES * await _slots(stage)
    texts = list(itertools.islice(_prompts(stage), count))
    jobs = [functools.partial(_ask, stage, text, number=number) for number, text in enumerate(texts)]
    began_s = stage.clock.now_s()
    replies = await at_once(jobs, most=_OPEN_MAX)
    sent = [Sent(0.0, reply) for reply in replies]
    settled_s = await _until_in_time(stage, limit_s=stage.bounds.burst_answered_s)
    refused = [each for each in sent if each.is_refused]
    stage.add(
        told("requests at one moment", count),
        told("of them answered whole", sum(each.is_answered for each in sent)),
        told("until the last had its answer", stage.clock.now_s() - began_s - (settled_s or 0.0), "s"),
        *_said_so(sent, refused),
        at_most("until one request is in time again", settled_s, stage.bounds.burst_answered_s, "s"),
    )
    stage.notes += _reasons(sent)


async def take_long_inputs(stage: Stage) -> None:
    """Inputs that fill most of the context; and one that doesn't fit, which is the caller's to change."""
    limit_s = stage.bounds.long_ttft_s
    chance = random.Random(stage.terms.seed + 2)
    count = words(stage, _LONG_WORDS)
    texts = [_text(chance, count) for _ in range(max(5, stage.size.trials))]
    patience_s = max(_PATIENCE_S, 2 * limit_s)  # one that comes too late is told with its time
    replies = [
        await stage.subject.owner.chat(text, stream=True, output_tokens_max=8, deadline_s=patience_s)
        for text in texts
    ]
    answered = [reply for reply in replies if reply.is_answered]
    tokens = [reply.usage().get("prompt_tokens", 0) for reply in answered]
    stage.known[INPUT_TOKENS] = float(max(tokens, default=0))
    stage.add(
        told("longest input, in the engine's tokens", max(tokens, default=0)),
        at_most("not answered whole", len(replies) - len(answered), 0, samples=len(replies)),
        at_most(
            "longest time to the first token",
            max((reply.ttft_s for reply in answered if reply.ttft_s is not None), default=None), limit_s, "s",
            samples=len(answered),
        ),
    )  # fmt: skip
    file = stage.subject.file
    if file is not None and (context := file.spec.revision.args.context_tokens) is not None:
        beyond = await stage.subject.owner.chat(_text(chance, 4 * context), output_tokens_max=8)
        stage.add(at_most("inputs beyond the context that aren't refused with 400", beyond.status != 400, 0))


async def refuse_overload(stage: Stage) -> None:
    """T7 in short: several times what it can do, open loop; what it can't do is refused at once, and it keeps its pace."""
    best = await pace(stage)
    bounds = stage.bounds
    rate = min(_RATE_MAX_PER_S, _OVERLOAD_TIMES * best)
    if rate < 2 * best:
        raise NotMade(f"one process can't ask for more than {rate:g} requests/s, and it answers {best:g}")
    deadline_s = max(1.0, _DEADLINE_TIMES * stage.known[SERVICE_S])
    duration_s = max(stage.size.load_s / 3, 2 * deadline_s)
    sent = await _open_loop(stage, rate_per_s=rate, duration_s=duration_s, deadline_s=deadline_s)
    good = sum(each.is_answered and each.took_s <= deadline_s for each in sent)
    refused = [each for each in sent if each.is_refused]
    settled_s = await _until_in_time(stage, limit_s=bounds.recovery_s)
    quick = [each.reply.took_s for each in refused if each.reply is not None]
    stage.add(
        told("requests meant to be sent", len(sent)),
        told("rate", rate, "/s"),
        told("of its best", rate / best, "times"),
        told("of them refused", len(refused)),
        at_least(
            "answered in time, of its best",
            good / (duration_s + deadline_s / 2) / best, bounds.goodput_share, samples=good,
        ),
        *_said_so(sent, refused),
        quantile_at_most("time of a refusal, p95", quick, 0.95, bounds.refusal_s)
        if len(quick) >= quantiles.samples_needed(0.95, alpha=ALPHA)
        else at_most("slowest refusal", max(quick, default=None), bounds.refusal_s, "s", samples=len(quick)),
        at_most("until one request is in time again", settled_s, bounds.recovery_s, "s"),
    )  # fmt: skip
    stage.notes += _reasons(sent)


def _said_so(sent: Sequence[Sent], refused: Sequence[Sent]) -> list[Figure]:
    """Whoever isn't served is told, and when to come back."""
    unsaid = [
        each for each in refused if each.reply and not each.reply.headers.get("retry-after", "").isdecimal()
    ]
    # The deadline that the caller gave passed, before the answer began or amid it: that is told as well.
    told_late = [
        each for each in sent if each.reply is not None and (each.reply.status == 504 or each.reply.error)
    ]
    lost = len(sent) - sum(each.is_answered for each in sent) - len(refused) - len(told_late)
    return [
        at_most("refused without Retry-After", len(unsaid), 0, samples=len(refused)),
        at_most("neither answered nor refused", lost, 0, samples=len(sent)),
    ]


def _is_in_time(sent: Sent, slo: Slo) -> bool:
    return attainment(slo, [_seen(sent)]).qualified.good == 1


def _reasons(sent: Sequence[Sent]) -> list[str]:
    counted: dict[str, int] = {}
    for each in sent:
        if not each.is_answered:
            reply = each.reply
            reason = "not sent" if reply is None else f"{reply.status} {reply.error or reply.reason}"
            counted[reason] = counted.get(reason, 0) + 1
    return [f"{count} x {reason}" for reason, count in counted.items()]


async def _ask(stage: Stage, text: str, *, number: int, deadline_s: float | None = None) -> Reply:
    return await stage.subject.owner.chat(
        text,
        stream=number % 4 != 3,
        output_tokens_max=OUTPUT_TOKENS,
        deadline_s=deadline_s or _PATIENCE_S,
    )


async def _open_loop(
    stage: Stage, *, rate_per_s: float, duration_s: float, deadline_s: float | None = None
) -> list[Sent]:
    """Poisson arrivals; what can't be sent for want of connections counts as asked."""
    clock, chance, prompts = stage.clock, random.Random(stage.terms.seed), _prompts(stage)
    sent: list[Sent] = []
    begun_s, due_s, opened = clock.now_s(), 0.0, 0

    async def ask(text: str, number: int, at_s: float) -> None:
        nonlocal opened
        late_s = clock.now_s() - at_s
        try:
            sent.append(Sent(late_s, await _ask(stage, text, number=number, deadline_s=deadline_s)))
        finally:
            opened -= 1

    async with asyncio.TaskGroup() as tasks:
        number = 0
        while (due_s := due_s - math.log(1 - chance.random()) / rate_per_s) < duration_s:
            await asyncio.sleep(max(0.0, begun_s + due_s - clock.now_s()))
            if opened < _OPEN_MAX:
                opened += 1
                tasks.create_task(ask(next(prompts), number, begun_s + due_s))
            else:
                sent.append(Sent(0.0, None))
            number += 1
    return sent


async def _until_in_time(stage: Stage, *, limit_s: float) -> float | None:
    began_s = stage.clock.now_s()
    prompts = _prompts(stage)
    while (since_s := stage.clock.now_s() - began_s) <= limit_s:
        if _is_in_time(Sent(0.0, await _ask(stage, next(prompts), number=0)), stage.terms.slo):
            return since_s
        await asyncio.sleep(0.2)
    return None


async def pace(stage: Stage) -> float:
    if PACE not in stage.known:
        await find_pace(Stage(stage.subject, stage.terms, stage.known, stage.progress))
    return stage.known[PACE]


async def _normal_rate(stage: Stage) -> float:
    return stage.terms.rate_per_s or min(_RATE_MAX_PER_S, stage.terms.load_share * await pace(stage))


async def _slots(stage: Stage) -> int:
    """Of all replicas, as the file says; at a URL nobody knows."""
    file = stage.subject.file
    if file is None:
        return 4
    return min(_CONCURRENCY_MAX, (file.spec.revision.args.slots or 4) * max(1, file.spec.scale.min))
