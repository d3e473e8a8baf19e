"""What does a planned request say? Text of about as many tokens as are planned, with what it shares with others word by word.

How many tokens a word has depends on the model, so that is learned from the first answers' own counts, and then held: a text that
is made a second time must be the same, or no cache could know it. Whoever sends from several processes lets one of them learn, and
gives the others what it found.
"""

from collections import OrderedDict
from itertools import accumulate
from random import Random
from typing import NamedTuple

import msgspec

from headrace.core.workload import BLOCK_TOKENS, Workload
from headrace.policies.workload_plan import Planned

Message = dict[str, str]

LESSONS_MAX = 24
CONVERSATIONS_MAX = 20_000
_SENT_MAX = 4096
_TEXT_WORDS = 20_000
_MARK_WORDS = 4
_STRIDE = 7919  # a prime: pieces of neighbours begin far from each other
_ASKS = "Write on in the same manner, at length, until you are stopped."
_ASKS_WORDS = len(_ASKS.split())

# Plain words, which a tokenizer of English has whole; of differing lengths, as in any text.
_PLAIN = (
    "the of and to in is that for it as was with be by on not he this are or his from at which but have an had they you were "
    "their one all we can her has there been if more when will would who so no out up into than them only some could time these "
    "two may then do first any my now such like our over man me even most made after also did many before must through back "
    "years where much your way well down should because each just those people how too little state good very make world still "
    "own see men work long get here between both life being under never day same another know while last might us great old year "
    "off come since against go came right used take three water house river light stone field paper letter market village "
    "mountain winter summer morning evening window garden bridge engine station journey answer question record measure number "
    "history science music language country city school office company service system process result reason purpose meaning"
)
_WORDS = _PLAIN.split()


class Measure(NamedTuple):
    """How a model counts.

    Attributes:
        tokens_per_word: Of these words.
        overhead_tokens: What its template adds to every prompt.
        lessons: How many answers that was learned from.
    """

    tokens_per_word: float = 1.0
    overhead_tokens: float = 12.0
    lessons: int = 0

    def words(self, tokens: float) -> int:
        return max(0, round(tokens / self.tokens_per_word))


UNLEARNED = Measure()


class _Lessons(msgspec.Struct):
    """Sums over prompts of so many words that had so many tokens."""

    count: int = 0
    words: float = 0.0
    tokens: float = 0.0
    words_squared: float = 0.0
    words_tokens: float = 0.0

    def add(self, words: int, tokens: int) -> None:
        self.count += 1
        self.words += words
        self.tokens += tokens
        self.words_squared += words * words
        self.words_tokens += words * tokens

    def measure(self) -> Measure:
        """Least squares; prompts that are all about as long say nothing about what the template adds."""
        mean_words, mean_tokens = self.words / self.count, self.tokens / self.count
        spread = self.words_squared / self.count - mean_words * mean_words
        if spread > (0.1 * mean_words) ** 2:
            slope = (self.words_tokens / self.count - mean_words * mean_tokens) / spread
            overhead = mean_tokens - slope * mean_words
            if slope > 0.2 and overhead >= 0.0:
                return Measure(slope, overhead, self.count)
        rest = max(1.0, mean_tokens - UNLEARNED.overhead_tokens)
        return Measure(max(0.2, rest / max(1.0, mean_words)), UNLEARNED.overhead_tokens, self.count)


class Prompts:
    """Makes the messages of planned requests.

    Of a few tokens no prompt can be made that differs from all others: the shortest are some words longer than planned.

    State: `_measure`, `_lessons` and `_sent` (how many words requests have that may still be learned from) change until
    enough was learned. `_conversations` has what was said in those that go on, and the oldest are forgotten where there are too
    many. `_seen`, which shared texts were sent.

    Args:
        nonce: Another one makes other texts of the same lengths, so that no cache knows them from an earlier run.
        measure: What was learned before; with lessons in it nothing more is learned.
    """

    def __init__(self, workload: Workload, *, nonce: int = 0, measure: Measure = UNLEARNED) -> None:
        self._measure = measure
        self._learns = not measure.lessons
        self._lessons = _Lessons()
        self._sent: dict[int, int] = {}
        self._system_tokens = workload.prefixes.system_tokens
        self._text = _Text(Random(f"{workload.seed} {nonce}"))
        self._conversations: OrderedDict[int, _Said] = OrderedDict()
        self._seen: set[int] = set()

    @property
    def measure(self) -> Measure:
        """How the model counts, as far as that is known."""
        return self._measure

    def settle(self) -> Measure:
        """Learns nothing more, so that what is shared stays the same from now on."""
        self._learns = False
        self._sent.clear()
        return self._measure

    def learn(self, planned: Planned, prompt_tokens: int) -> None:
        """Takes note of how many tokens the prompt of a request had, as its answer said."""
        if not self._learns or (words := self._sent.pop(planned.number, None)) is None:
            return
        self._lessons.add(words, prompt_tokens)
        self._measure = self._lessons.measure()
        if self._lessons.count == LESSONS_MAX:
            self.settle()

    def is_prefix_seen(self, planned: Planned) -> bool:
        """Whether what this prompt shares with others, or with its own earlier turns, was sent before. Ask before `messages`."""
        if planned.turn > 1:
            return planned.conversation in self._conversations
        return planned.prefix_group is not None and planned.prefix_group in self._seen

    def messages(self, planned: Planned) -> list[Message]:
        """What is sent; to be asked for once, in the order in which the turns of a conversation are sent."""
        words = self._measure.words(planned.input_tokens - self._measure.overhead_tokens)
        said = self._conversations.pop(planned.conversation, None) if planned.turn > 1 else None
        said = self._beginning(planned) if said is None else said.answered(self._text)
        said.add("user", self._own(planned, words - said.words))
        said.output_words = self._measure.words(planned.output_tokens)
        if self._learns and len(self._sent) < _SENT_MAX:
            self._sent[planned.number] = said.words
        if planned.prefix_group is not None:
            self._seen.add(planned.prefix_group)
        if planned.turn < planned.turns or not planned.turns:
            self._conversations[planned.conversation] = said
            if len(self._conversations) > CONVERSATIONS_MAX:
                self._conversations.popitem(last=False)
        return list(said.messages)

    def heard(self, planned: Planned, answer: str) -> None:
        """Takes the answer into the conversation. Where it isn't told, text of the planned length stands for it."""
        said = self._conversations.get(planned.conversation)
        if said is not None and said.messages[-1]["role"] == "user":
            said.add("assistant", answer)

    def _beginning(self, planned: Planned) -> "_Said":
        """What is said before a caller's own words."""
        said, words, template = _Said(), self._measure.words, self._measure.overhead_tokens
        if planned.blocks:
            each, first = words(BLOCK_TOKENS), words(BLOCK_TOKENS - template)
            blocks = planned.blocks[: (planned.input_tokens - 1) // BLOCK_TOKENS]
            pieces = (self._text.marked(-2 - block, each if n else first) for n, block in enumerate(blocks))
            if blocks:
                said.add("user", "".join(pieces))
            return said
        # What the template adds stands before all of it, and is shared too.
        shared = words(planned.prefix_tokens - template)
        system = min(shared, words(self._system_tokens - template))
        if system:
            said.add("system", self._text.cut(0, system))
        if planned.prefix_group is not None and shared > system:
            said.add("user", self._text.marked(-2 - planned.prefix_group, shared - system))
        return said

    def _own(self, planned: Planned, words: int) -> str:
        """What nobody else says; it asks for a long answer, where there is room for that."""
        asked = _ASKS_WORDS if words > 2 * _ASKS_WORDS else 0
        text = self._text.marked(planned.number, max(_MARK_WORDS, words - asked))
        return text + _ASKS if asked else text


class _Said:
    """A conversation so far."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.words = 0
        self.output_words = 0

    def add(self, role: str, content: str) -> None:
        """Goes on, also with what somebody has only begun to say."""
        self.words += content.count(" ") + (not content.endswith(" "))
        if self.messages and self.messages[-1]["role"] == role:
            self.messages[-1] = {"role": role, "content": self.messages[-1]["content"] + content}
        else:
            self.messages.append({"role": role, "content": content})

    def answered(self, text: "_Text") -> "_Said":
        if self.messages[-1]["role"] == "user":
            self.add("assistant", text.cut(self.words, max(1, self.output_words)))
        return self


class _Text:
    """A long text of plain words, of which pieces are taken."""

    def __init__(self, chance: Random) -> None:
        words = chance.choices(_WORDS, k=_TEXT_WORDS)
        self._starts = [0, *accumulate(len(word) + 1 for word in words)]
        self._whole = " ".join(words) + " "
        self._names = chance.sample(_WORDS, len(_WORDS))

    def cut(self, start: int, words: int) -> str:
        """So many words from there on, again from the beginning where it ends."""
        begin, end = start % _TEXT_WORDS, start % _TEXT_WORDS + words
        rounds, last = divmod(end, _TEXT_WORDS)
        if not rounds:
            return self._whole[self._starts[begin] : self._starts[last]]
        return (
            self._whole[self._starts[begin] :]
            + self._whole * (rounds - 1)
            + self._whole[: self._starts[last]]
        )

    def marked(self, number: int, words: int) -> str:
        """So many words that begin like those of no other number."""
        names, left = [], number % len(self._names) ** _MARK_WORDS
        for _ in range(_MARK_WORDS):
            left, digit = divmod(left, len(self._names))
            names.append(self._names[digit])
        mark = " ".join(names[:words]) + " "
        return mark + self.cut(number * _STRIDE, words - _MARK_WORDS) if words > _MARK_WORDS else mark
