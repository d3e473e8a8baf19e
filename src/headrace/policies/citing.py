"""Does what an answer cites really hold what it says? Statement by statement, by wordings and by numbers; no model is asked.

An answer that names the right passages somewhere may still put them behind the wrong statements. So each claim that a case
names must have a mark near it of a passage that holds it; and every number of the answer must stand in a passage that it cites,
or in the question. A number that is in neither was made up, or worked out, and then the case says so.
"""

import re
from collections.abc import Iterable, Iterator, Mapping

from headrace.policies import answer_text, numerals

_CLAUSE_END = re.compile(
    r"[!?;。！？；]|[.,，:](?=\s)|(?=\b(?:and|but|while|whereas|although)\b)|(?=而|但|以及)"
)
_SAME = 1e-9


def cited_at(plain: str, position: int) -> frozenset[str]:
    """What is cited for the words at a place of a normalised text.

    The marks of its clause; where that has none, the next behind it, as in `It is 28 days. [2]`, and else the last before.
    """
    start = max((end.end() for end in _CLAUSE_END.finditer(plain, 0, position)), default=0)
    behind = _CLAUSE_END.search(plain, position + 1)
    end = behind.start() if behind is not None else len(plain)
    if found := answer_text.citations(plain[start:end]):
        return found
    marks = list(answer_text.citation_marks(plain))
    after = [labels for at, labels in marks if at >= position]
    return after[0] if after else marks[-1][1] if marks else frozenset()


def is_cited(plain: str, places: Iterable[int], passages: Iterable[str]) -> bool:
    """Whether at one of these places one of these passages is cited; also where there is no such place."""
    wanted = {label.casefold() for label in passages}
    listed = list(places)
    return not listed or any(cited_at(plain, place) & wanted for place in listed)


def unfounded(plain: str, *, passages: Mapping[str, str], question: str) -> Iterator[float]:
    """Numbers of a normalised answer that stand neither in a passage that it cites nor in the question."""
    cited = answer_text.citations(plain)
    sources = [text for label, text in passages.items() if label.casefold() in cited]
    known = [
        number.value
        for source in (*sources, question)
        for number in numerals.numbers(answer_text.normalised(source))
    ]
    for number in numerals.numbers(plain):
        if not any(abs(number.value - each) <= _SAME * max(1.0, abs(each)) for each in known):
            yield number.value
