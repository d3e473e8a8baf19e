"""Is one text nearly another? By the runs of words that they share, so that a few changed words hide nothing.

What is tuned on can't be evidence, and a passage whose figures were changed is still the same document. So texts are cut into
runs of words (each Chinese character is one), and the share of the shorter text's runs that the longer one has is compared:
"containment" of Broder, On the resemblance and containment of documents (1997), which also finds a text within a longer one.
"""

from collections.abc import Iterable, Iterator, Mapping

from headrace.policies import answer_text

RUN_WORDS = 5
NEARLY = 0.6
"""From here on two texts count as one. Unrelated texts of one kind share next to nothing; half is a rewritten sentence."""


def runs(text: str) -> frozenset[tuple[str, ...]]:
    """All runs of so many words; of a shorter text the whole."""
    words = answer_text.listed_words(answer_text.normalised(text))
    return frozenset(
        tuple(words[start : start + RUN_WORDS]) for start in range(max(1, len(words) - RUN_WORDS + 1))
    )


def contained(some: str, others: str) -> float:
    """Which share of the runs of the shorter text is in the longer one, 0 to 1."""
    return _share(runs(some), runs(others))


def near(
    some: Mapping[str, Iterable[str]], others: Mapping[str, Iterable[str]], *, least: float = NEARLY
) -> Iterator[tuple[str, str]]:
    """Pairs of names with texts that are nearly the same; it takes time by what the texts share, not by their pairs."""
    texts = [(name, runs(text)) for name, named in others.items() for text in named]
    having: dict[tuple[str, ...], list[int]] = {}
    for number, (_, found) in enumerate(texts):
        for run in found:
            having.setdefault(run, []).append(number)
    for name, named in some.items():
        for mine in map(runs, named):
            for number in sorted({number for run in mine for number in having.get(run, ())}):
                other, its = texts[number]
                if _share(mine, its) >= least:
                    yield name, other


def _share(some: frozenset[tuple[str, ...]], others: frozenset[tuple[str, ...]]) -> float:
    return len(some & others) / min(len(some), len(others))
