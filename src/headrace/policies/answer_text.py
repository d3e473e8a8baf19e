"""What does an answer say, apart from how it is written? Its words, citations, script, and whether it declines.

English and Chinese, and what both share with other languages: figures, marks of citations, scripts. Every function takes time
that grows with the length of its text and no faster, and callers cut texts before they ask (`head`).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum

CHARACTERS_MAX = 16 * 1024
"""Of a longer text only the head is looked at."""

_OPENING_CHARACTERS = 600
_SPACE = re.compile(r"\s+")
_GROUPING_SPACE = re.compile(r"(?<=\d)[\u00a0\u2009\u202f](?=\d{3}(?!\d))")
_EMPHASIS = re.compile(r"[*_`#]+")
_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[\u3400-\u9fff\u3040-\u30ff]|[^\W\d_a-z]+")
_NEGATION = re.compile(r"\b(?:not|no|never|none|neither|nor|without|cannot)\b|n't\b|[不没無无未非否]")


def head(text: str) -> str:
    """As much of it as is looked at."""
    return text[:CHARACTERS_MAX]


def normalised(text: str) -> str:
    """Compatible characters made one (NFKC, so full-width forms too), no case, single spaces, no marks of emphasis."""
    # A full-width comma parts two numbers; the narrow one that NFKC makes of it would group thousands. A narrow space groups
    # them, and would become an ordinary one.
    text = _GROUPING_SPACE.sub(",", text.replace("，", "， "))
    plain = _EMPHASIS.sub("", unicodedata.normalize("NFKC", text).casefold())
    return _SPACE.sub(" ", plain.replace("’", "'").replace("‘", "'")).strip()


def words(text: str) -> Counter[str]:
    """The words of a normalised text; each Chinese character is one."""
    return Counter(listed_words(text))


def listed_words(text: str) -> list[str]:
    """The same in order, each as often as it is there."""
    return _WORD.findall(text)


def overlap(some: Counter[str], others: Counter[str]) -> float:
    """How much two bags of words have in common, 0 to 1: twice the shared words over all."""
    total = some.total() + others.total()
    return 2 * (some & others).total() / total if total else 1.0


def negations(text: str) -> int:
    """How often a normalised text says no: what turns a sentence round and leaves its other words alone."""
    return len(_NEGATION.findall(text))


# Citations

# A mark such as [1], [2, 3] or 【p4】: short words in brackets, at least one of them with a digit.
_CITATION = re.compile(r"[\[【] ?((?:[a-z]{0,8}[-_ ]?\d{1,4} ?[,;，、]? ?){1,8})[\]】]", re.IGNORECASE)
_LABEL = re.compile(r"[a-z]{0,8}[-_ ]?\d{1,4}", re.IGNORECASE)


def citations(text: str) -> frozenset[str]:
    """The passages that an answer cites, by their labels without spaces: `[1]`, `[2, 3]`, `【p4】`."""
    return frozenset(label for _, labels in citation_marks(text) for label in labels)


def citation_marks(text: str) -> Iterator[tuple[int, frozenset[str]]]:
    """Each mark: where it is, and what it names."""
    for mark in _CITATION.finditer(text):
        labels = _LABEL.findall(mark.group(1))
        yield mark.start(), frozenset(label.replace(" ", "").casefold() for label in labels)


def without_citations(text: str) -> str:
    """The text with a space where a mark was, so that what it cites is no number of it."""
    return _CITATION.sub(" ", text)


# Scripts


class Script(StrEnum):
    """What most of the letters of a text are; which of two languages of one script it is, they don't say."""

    LATIN = "latin"
    HAN = "han"
    KANA = "kana"
    HANGUL = "hangul"
    CYRILLIC = "cyrillic"
    ARABIC = "arabic"
    NONE = "none"


_SCRIPTS = {
    Script.LATIN: re.compile(r"[A-Za-z\u00c0-\u024f]+"),
    Script.HAN: re.compile(r"[\u3400-\u9fff]+"),
    Script.KANA: re.compile(r"[\u3040-\u30ff]+"),
    Script.HANGUL: re.compile(r"[\uac00-\ud7af]+"),
    Script.CYRILLIC: re.compile(r"[\u0400-\u04ff]+"),
    Script.ARABIC: re.compile(r"[\u0600-\u06ff]+"),
}
# A Chinese character says about as much as so many Latin letters.
_HAN_WEIGHT = 3
_KANA_SHARE_MIN = 0.1


def script(text: str) -> Script:
    """The script of most of it. Japanese is known by a share of kana that Chinese hasn't."""
    found = {kind: sum(map(len, pattern.findall(text))) for kind, pattern in _SCRIPTS.items()}
    if found[Script.KANA] and found[Script.KANA] >= _KANA_SHARE_MIN * found[Script.HAN]:
        found[Script.KANA] += found[Script.HAN]
        found[Script.HAN] = 0
    for kind in (Script.HAN, Script.KANA, Script.HANGUL):
        found[kind] *= _HAN_WEIGHT
    most = max(found, key=found.__getitem__)
    return most if found[most] else Script.NONE


# Declining

_FINDS_NOTHING = re.compile(
    r"\b(?:do(?:es)? not|don't|doesn't|did not|didn't) (?:\w+ ){0,3}?"
    r"(?:say|state|mention|contain|include|specify|provide|give|cover|address|know|have|list|tell|find|answer)"
    r"|\b(?:is|are|was|were) (?:not|never) (?:\w+ ){0,2}?(?:mentioned|stated|specified|given|provided|included|covered|available|listed|found|answered|said)"
    r"|\b(?:isn't|aren't|wasn't) (?:\w+ ){0,2}?(?:mentioned|stated|specified|given|provided|included|covered|available|listed|found|answered|said)"
    r"|\bno (?:\w+ ){0,2}?(?:information|mention|answer|evidence|statement|details?|excerpts?|passages?)\b"
    r"|\bnone of (?:the|these) (?:excerpts|passages|documents|sources)"
    r"|\bnot enough information|\binsufficient information|\bnothing (?:about|on|in the)"
    r"|\b(?:cannot|can't|could not|couldn't|unable to) (?:\w+ ){0,2}?(?:find|answer|determine|tell|say|be (?:determined|answered|found))"
    r"|(?:没有|並未|并未|未|没)(?:有)?(?:任何)?(?:明确)?(?:地)?(?:提到|提及|说明|給出|给出|写明|涉及|包含|提供|找到|记载|規定|规定|说|写|相关|有关|答案|信息|依据)"
    r"|(?:无法|不能|難以|难以)(?:从.{0,12})?(?:回答|确定|得知|判断|找到|确认|得出)|不知道|找不到|信息不足|无相关|没有足够"
)
_DECLINES = re.compile(
    r"\b(?:i |we )?(?:cannot|can't|can not|won't|will not|must not|may not|am not able to|am unable to|'m unable to|'m not able to|are unable to|are not able to|should not)"
    r" (?:\w+ ){0,2}?(?:help|assist|share|provide|disclose|reveal|give|do that|do this|comply|answer|discuss|fulfil|support|write|create|tell|offer|recommend|ignore|follow|show|print|repeat|advise|make)"
    r"|\bunable to (?:help|assist|share|provide|disclose|reveal|give|comply|answer)"
    r"|\b(?:i'm|i am|we are|we're) sorry,? but|\bi must decline|\bi decline|\bnot (?:permitted|allowed|authori[sz]ed) to (?:share|provide|disclose|reveal|give|answer|help|say)"
    r"|\bnot something (?:i|we) can"
    r"|(?:抱歉|对不起|很遗憾).{0,12}(?:不能|无法|不便|没法|不可以)|(?:我|我们)?(?:不能|无法|不便|没办法|不可以|不会|不应)(?:为你|为您|向你|向您|给你|给您|替你|替您|帮你|帮您|直接|在这里)?"
    r"(?:提供|透露|泄露|告诉|协助|帮助|回答|执行|满足|公开|分享|讨论|给出|建议|编写|写|说)|拒绝"
)

_DEFERS = re.compile(
    r"\b(?:ask|consult|contact|see|speak (?:to|with)|talk (?:to|with)|turn to|check with|call|decided? by|up to|matter for|advice (?:of|from))"
    r" (?:\w+ ){0,4}?(?:doctor|physician|pharmacist|surgeon|midwife|clinic|lawyer|solicitor|attorney|notary|adviser|advisor|court|counsel)"
    r"|\bonly (?:\w+ ){0,3}?(?:doctor|physician|pharmacist|lawyer|solicitor|attorney|court|judge|notary) can"
    r"|(?:咨询|请教|询问|联系|请|由|遵).{0,8}(?:医生|医师|药师|大夫|律师|法院|公证|医嘱)"
)
_GUESSES = re.compile(
    r"\b(?:probably|presumably|most likely|usually|typically|generally|in most cases|as a rule of thumb)\b"
    r"|\bi (?:would |'d |can only )?(?:guess|assume|suppose|suspect|estimate|imagine)\b|\bmy (?:best )?guess\b"
    r"|一般来说|一般为|一般是|通常|大概|估计|很可能|应该是|应该可以|想必|多半|据我所知"
)


def finds_nothing(text: str) -> bool:
    """Whether the opening of a normalised text says that what was asked isn't in what was given. An estimate, by phrases."""
    return _FINDS_NOTHING.search(text[:_OPENING_CHARACTERS]) is not None


def declines(text: str) -> bool:
    """Whether the opening of a normalised text declines to do what was asked. An estimate, by phrases."""
    return _DECLINES.search(text[:_OPENING_CHARACTERS]) is not None


def defers(text: str) -> bool:
    """Whether the opening of a normalised text leaves a decision to a doctor, a lawyer or a court. An estimate, by phrases."""
    return _DEFERS.search(text[:_OPENING_CHARACTERS]) is not None


def guesses(text: str) -> bool:
    """Whether a normalised text says something of its own that it doesn't know. An estimate, by phrases."""
    return _GUESSES.search(text) is not None


# Repetition

_TAIL_CHARACTERS = 3000
_REPEATED_CHARACTERS_MIN = 300
_REPEATS_MIN = 5


def runs_away(text: str) -> bool:
    """Whether it ends in one piece said over and over: what a model that has lost its thread does until its limit.

    The shortest period of every ending of the text, by the prefix function of the reversed tail (Knuth, Morris, Pratt, 1977).
    """
    tail = text[: -_TAIL_CHARACTERS - 1 : -1]
    borders = [0] * len(tail)
    for position in range(1, len(tail)):
        border = borders[position - 1]
        while border and tail[position] != tail[border]:
            border = borders[border - 1]
        borders[position] = border + (tail[position] == tail[border])
        length = position + 1
        period = length - borders[position]
        if length >= _REPEATED_CHARACTERS_MIN and length >= _REPEATS_MIN * period:
            return True
    return False
