"""Does a tenant learn anything of another, and does a prompt that was just asked cost less?"""

import asyncio
import random
from dataclasses import dataclass, field

from headrace.evidence.certify import NotMade, Stage
from headrace.evidence.certify_caller import COMPLETIONS, MODELS, Caller, Reply
from headrace.evidence.drill_instance import DrillError
from headrace.policies import ranks
from headrace.policies.certification import at_least, at_most, told

_WORDS = ("sea", "oak", "ink", "map", "fog", "sun", "elm", "rye")
# Long enough that reading it takes time, short enough for a small context.
PROMPT_WORDS = 300
_CONTEXT_SHARE = 0.5
_KEY_LIMIT_S = 30.0
_ASKED_FOR_EACH = 4
_TEMPLATE_SHARE = 0.02
_ANOTHER = "certify-another-model"


async def keep_apart(stage: Stage) -> None:
    """T41, T42, REPORTS 104 and 106: keys, ids, kept answers and times of prompts, of two tenants."""
    owner, other = stage.subject.owner, stage.here.other
    leaks = [
        *await _kept_answers(stage, owner, other),
        *await _shared_names(owner, other),
        *await _unlike_models(stage),
    ]
    stage.add(at_most("things of another tenant that were seen", len(leaks), 0))
    stage.notes += leaks
    await _probe_times(stage, owner, other)


async def _kept_answers(stage: Stage, owner: Caller, other: Caller) -> list[str]:
    """The same Idempotency-Key and the same body: the other's answer must be its own."""
    leaks = []
    for stream in (False, True):
        for number in range(stage.size.trials):
            named = {"idempotency-key": f"certify-{stream}-{number}"}
            theirs, ours = [
                await caller.chat("What is kept?", stream=stream, output_tokens_max=4, headers=named)
                for caller in (owner, other)
            ]
            told_ids = (ours.request_id, ours.headers.get("x-headrace-original-request-id", ""))
            if theirs.request_id in told_ids or "x-headrace-idempotent-replay" in ours.headers:
                leaks.append(
                    f"an answer that was kept for another tenant was given away: {theirs.request_id}"
                )
            elif not (theirs.is_answered and ours.is_answered):
                leaks.append(f"work of one tenant stands in another's way: {ours.status} {ours.reason}")
    return leaks


async def _shared_names(owner: Caller, other: Caller) -> list[str]:
    """The same x-request-id: no answer is mixed up, and no name is taken over."""
    named = {"x-request-id": "req_certify"}
    replies = [
        await caller.chat("Whose is it?", output_tokens_max=2, headers=named) for caller in (owner, other)
    ]
    ids = {reply.request_id for reply in replies}
    return [] if len(ids) == 2 and "req_certify" not in ids else ["two tenants' requests have one name"]


async def _unlike_models(stage: Stage) -> list[str]:
    """A key that isn't for a model doesn't see it, and is told that there is none."""
    running, other = stage.here.running, stage.here.other
    made = await running.command("keys", "create", "--tenant", other.tenant, "--model", _ANOTHER)
    key = made.strip()
    leaks = []
    until_s = stage.clock.now_s() + _KEY_LIMIT_S
    while (listed := await other.ask("GET", MODELS, key=key)).status == 401:
        if stage.clock.now_s() > until_s:
            raise DrillError(f"a new key is not in force after {_KEY_LIMIT_S:g} s")
        await asyncio.sleep(0.05)
    if listed.status == 200 and other.model.encode() in listed.body:
        leaks.append("a model is listed for a key that isn't for it")
    body = {"model": other.model, "prompt": "Is it there?", "max_tokens": 1}
    asked = await other.ask("POST", COMPLETIONS, body, key=key)
    if asked.status == 200:
        leaks.append("a key is served by a model that it isn't for")
    return leaks


@dataclass
class _Heard:
    """Seconds to the first token, and tokens that were said to come from a cache."""

    times_s: list[float] = field(default_factory=list)
    cached: int = 0
    tokens: int = 0

    @property
    def cached_share(self) -> float:
        return self.cached / max(1, self.tokens)

    def add(self, reply: Reply) -> bool:
        if not reply.is_answered or reply.ttft_s is None:
            return False
        usage = reply.usage()
        self.times_s.append(reply.ttft_s)
        self.tokens += usage.get("prompt_tokens", 0)
        self.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        return True


async def _probe_times(stage: Stage, owner: Caller, other: Caller) -> None:
    """A primed prompt and one that nobody has asked, as long, in random order; what is found is looked for once more."""
    chance = random.Random(stage.terms.seed)
    primed, unseen = await _probed(stage, owner, other, chance)
    p = ranks.sooner_p(primed.times_s, unseen.times_s)
    if p < stage.bounds.leak_p:  # by chance that is so now and then, and seldom twice
        primed, unseen = await _probed(stage, owner, other, chance)
        p = max(p, ranks.sooner_p(primed.times_s, unseen.times_s))
    answered = min(len(primed.times_s), len(unseen.times_s))
    if answered < stage.size.pairs:
        stage.add(at_least("prompts that were answered", answered, stage.size.pairs))
        return
    stage.add(
        at_least(
            "chance of such times where nothing is told of another's prompts",
            p,
            stage.bounds.leak_p,
            samples=len(primed.times_s),
        ),
        # What a template puts before every prompt may be the tenant's own from before, and is there in both.
        at_most(
            "part of another tenant's prompt that comes from a cache",
            max(0.0, primed.cached_share - unseen.cached_share),
            _TEMPLATE_SHARE,
            samples=len(primed.times_s),
        ),
    )


async def _probed(stage: Stage, owner: Caller, other: Caller, chance: random.Random) -> tuple[_Heard, _Heard]:
    primed, unseen = _Heard(), _Heard()
    for _ in range(stage.size.pairs):
        known, new = (_text(stage, chance) for _ in range(2))
        await owner.chat(known, stream=True, output_tokens_max=1)
        order = [(known, primed), (new, unseen)]
        chance.shuffle(order)
        for text, heard in order:
            heard.add(await other.chat(text, stream=True, output_tokens_max=1))
    return primed, unseen


async def warm_cache(stage: Stage) -> None:
    """A prompt is asked twice: the second time most of it comes from the prefix cache, and sooner."""
    if stage.subject.file is not None and stage.subject.file.spec.revision.args.prefix_cache is False:
        raise NotMade("the deployment has its prefix cache switched off")
    chance = random.Random(stage.terms.seed + 1)
    owner, replicas = stage.subject.owner, await _replicas(stage)
    cold, between, warm = _Heard(), _Heard(), _Heard()
    # Which of several replicas gets a prompt isn't known: it is asked until each of them has most probably had it.
    askings = [cold, *[between] * (_ASKED_FOR_EACH * (replicas - 1)), warm]
    for _ in range(max(5, stage.size.trials)):
        text = _text(stage, chance)
        for heard in askings:
            if not heard.add(await owner.chat(text, stream=True, output_tokens_max=1)):
                raise NotMade("a prompt of that length is not answered")
    if replicas > 1:
        stage.notes.append(f"{replicas} replicas: each prompt was asked {len(askings) - 1} times before")
    cold_s, warm_s = (sorted(heard.times_s)[len(heard.times_s) // 2] for heard in (cold, warm))
    stage.add(
        at_least(
            "part of a repeated prompt that comes from the cache",
            warm.cached_share,
            stage.bounds.cached_share,
            samples=len(warm.times_s),
        ),
        told("time to the first token, cold cache, median", cold_s, "s", samples=len(cold.times_s)),
        told("time to the first token, warm cache, median", warm_s, "s", samples=len(warm.times_s)),
    )


async def _replicas(stage: Stage) -> int:
    return 1 if stage.subject.running is None else max(1, len(await stage.here.engines()))


def words(stage: Stage, wanted: int) -> int:
    """So many, or as many as the half of the model's context holds."""
    file = stage.subject.file
    context = file.spec.revision.args.context_tokens if file is not None else None
    return min(wanted, int(context * _CONTEXT_SHARE)) if context else wanted


def _text(stage: Stage, chance: random.Random) -> str:
    """About a token a word, unlike any other text from its first words on."""
    return "".join(f"{chance.choice(_WORDS)} " for _ in range(words(stage, PROMPT_WORDS)))
