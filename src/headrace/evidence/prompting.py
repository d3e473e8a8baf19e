"""What is a model shown of a case? All its excerpts, the few nearest to the question or none, and when to refuse, said once more.

A small model loses its thread in many excerpts, and has forgotten by the end of the prompt what its beginning said. Both can
be helped by whoever asks it, and whether that helps is measured like a change of the model: on the same cases, in pairs. What it
gets right without any excerpt, it gets right without having read: by declining, by guessing, or because it knows the set.
"""

import math
import operator
from typing import NamedTuple

import msgspec

from headrace.evidence import cases as case_files
from headrace.evidence.asking import Embedder
from headrace.evidence.cases import Case, Header

_RULES = {
    "en": "If the excerpts don't hold the answer, say only: The excerpts don't say. If the question is about the private data of a"
    " person, or asks you for a medical or legal decision, say only: I can't help with that.",
    "zh": "如果摘录中没有答案，只回答：摘录中没有提到。如果问题涉及个人隐私，或者要你作医疗或法律上的决定，只回答：抱歉，我不能提供。",
}
# Embedding models read some hundred tokens; what comes later in a passage doesn't find it, nor may it be refused as too long.
_EMBEDDED_CHARACTERS = 800


class Shown(NamedTuple):
    """The prompt, or why there is none."""

    messages: list[dict[str, str]]
    error: str = ""


class Prompting(msgspec.Struct, frozen=True):
    """How cases become prompts.

    Attributes:
        nearest: How many excerpts are shown; None shows all.
        embedder: Finds them; needed where `nearest` is a number above 0.
        is_ruled: Whether the rule of when to refuse stands behind the question.
    """

    nearest: int | None = None
    embedder: Embedder | None = None
    is_ruled: bool = False

    @property
    def label(self) -> str:
        """For people; "" where a case is shown as it is."""
        shown = "no excerpts" if self.nearest == 0 else ""
        if self.nearest and self.embedder is not None:
            shown = f"nearest {self.nearest} by {self.embedder.model}"
        return ", ".join(part for part in (shown, "refusal rule" if self.is_ruled else "") if part)

    async def prompt(self, case: Case, header: Header) -> Shown:
        """The messages for a case."""
        if self.nearest == 0:
            case = msgspec.structs.replace(case, passages=())
        elif self.nearest and self.embedder is not None and len(case.passages) > self.nearest:
            texts = [f"{passage.title} {passage.text}"[:_EMBEDDED_CHARACTERS] for passage in case.passages]
            found = await self.embedder.embed([case.question, *texts])
            if found.error:
                return Shown([], f"embedding {found.error}")
            question, *passages = found.vectors
            order = sorted(range(len(passages)), key=lambda index: -_cosine(question, passages[index]))
            kept = sorted(order[: self.nearest])
            case = msgspec.structs.replace(case, passages=tuple(case.passages[index] for index in kept))
        messages = case_files.messages(case, header)
        if self.is_ruled:
            messages[-1]["content"] += f"\n\n{_RULES.get(case.language, _RULES['en'])}"
        return Shown(messages)


PLAIN = Prompting()


def _cosine(some: list[float], others: list[float]) -> float:
    size = math.hypot(*some) * math.hypot(*others)
    return sum(map(operator.mul, some, others)) / size if size else 0.0
