"""Does the time to a first token tell what somebody else has asked? Pairs of probes, and the test of ranks that judges them."""

import http.client
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ALPHA = 0.01
LIMIT_S = 60.0


def mann_whitney_p(quick: Sequence[float], slow: Sequence[float]) -> float:
    """How likely it is that values as much below the others as these are come of one distribution: one-sided, by the normal
    approximation, with corrections for ties and for continuity.

    Source: Mann and Whitney, "On a test of whether one of two random variables is stochastically larger than the other", 1947.
    """
    n, m = len(quick), len(slow)
    values = sorted([*quick, *slow])
    counts = Counter(values)
    rank: dict[float, float] = {}
    before = 0
    for value in sorted(counts):
        rank[value] = before + (counts[value] + 1) / 2
        before += counts[value]
    u = sum(rank[value] for value in quick) - n * (n + 1) / 2
    ties = sum(count**3 - count for count in counts.values()) / ((n + m) * (n + m - 1))
    variance = n * m / 12 * (n + m + 1 - ties)
    if not variance:
        return 1.0
    return 0.5 * math.erfc(-(u + 0.5 - n * m / 2) / math.sqrt(2 * variance))


@dataclass(frozen=True)
class Heard:
    """One answer: the time to its first token, and how much of its prompt the answer says was cached."""

    first_s: float
    cached_tokens: int


class Caller:
    """Somebody with a key and a kept-alive connection, which is closed by `close`."""

    def __init__(self, port: int, key: str, model: str) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT_S)
        self._key = key
        self._model = model

    def ask(self, text: str) -> Heard:
        question = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 1,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        body, headers = json.dumps(question), {"authorization": f"Bearer {self._key}"}
        began_s = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body, headers)
        answer = self._connection.getresponse()  # its head comes with the first token
        first_s = time.perf_counter() - began_s
        said = answer.read().decode()
        assert answer.status == 200, said
        events = [line.removeprefix("data: ") for line in said.split("\n") if line.startswith("data: {")]
        usage: dict[str, Any] = json.loads(events[-1])["usage"]
        return Heard(first_s, (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0))

    def close(self) -> None:
        self._connection.close()


@dataclass(frozen=True)
class Probed:
    """What a guesser heard: of prompts that somebody had primed, and of prompts that nobody had ever asked."""

    primed: list[Heard]
    unseen: list[Heard]

    @property
    def p(self) -> float:
        """Small where primed prompts begin sooner."""
        return mann_whitney_p([each.first_s for each in self.primed], [each.first_s for each in self.unseen])


def probe(owner: Caller, guesser: Caller, *, pairs: int, tokens: int, chance: random.Random) -> Probed:
    """The guesser asks for a prompt that the owner has asked just before, and for another that is as long, in random order;
    again and again, so that what else the machine does meets both alike."""
    probed = Probed([], [])
    for _ in range(pairs):
        primed, unseen = _text(tokens, chance), _text(tokens, chance)
        order = [primed, unseen]
        chance.shuffle(order)
        for text in order:
            if text is primed:
                owner.ask(text)
            (probed.primed if text is primed else probed.unseen).append(guesser.ask(text))
    return probed


def tells(run: Callable[[], Probed]) -> bool:
    """Whether a difference is found, and found again on other prompts: by chance that is so once in ten thousand times."""
    return run().p < ALPHA and run().p < ALPHA


def is_told(run: Callable[[], Probed]) -> bool:
    """Whether a difference that must be there is found; a second run may make up for a machine that was busy in the first."""
    return run().p < ALPHA or run().p < ALPHA


_WORDS = ("sea", "oak", "ink", "map", "fog", "sun", "elm", "rye")


def _text(tokens: int, chance: random.Random) -> str:
    """Words of four bytes, about a token each, unlike any other text from its first words on."""
    return "".join(f"{chance.choice(_WORDS)} " for _ in range(tokens))
