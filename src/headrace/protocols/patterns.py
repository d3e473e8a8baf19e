"""What would this regular expression cost an engine that builds a grammar or an automaton of it? Read, never run."""

import re
from dataclasses import dataclass

LENGTH_MAX = 1024
WEIGHT_MAX = 4096  # places once bounded repetitions are written out
CHOICES_MAX = 64  # quantifiers that leave the count open, and alternatives
DEPTH_MAX = 16

_QUANTIFIER = re.compile(r"\*|\+|\?|\{(\d{1,9})(,(\d{0,9}))?\}")
_CLASS = re.compile(r"\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
_GROUP = re.compile(r"\((?:\?:|\?P?<\w{1,32}>)?")
_NO_REFERENCE = re.compile(r"\\(?![1-9k]).", re.DOTALL)


class BadPattern(Exception):
    """The pattern is malformed, or costs more than we let anyone ask for; the text says which."""


@dataclass(frozen=True, slots=True)
class _Part:
    """What is known of a part of a pattern.

    Attributes:
        may_be_empty: It matches the empty text.
        is_anchored: Some of it is always there exactly once: what repeats around it can be told apart.
        is_endless: Something in it repeats without an upper bound.
        weight: Places once bounded repetitions are written out.
    """

    may_be_empty: bool
    is_anchored: bool
    is_endless: bool
    weight: int


_CHARACTER = _Part(may_be_empty=False, is_anchored=True, is_endless=False, weight=1)
_NOTHING = _Part(may_be_empty=True, is_anchored=False, is_endless=False, weight=0)


def weigh(pattern: str) -> int:
    """How many places the pattern has, written out. Raises BadPattern.

    Refused are repetitions that can divide the same text in many ways, such as `(a+)+` and `(a?)*`: backtracking takes
    exponential time for them, and engines that don't backtrack explode in another place.
    """
    if len(pattern) > LENGTH_MAX:
        raise BadPattern(f"has more than {LENGTH_MAX} characters")
    reader = _Reader(pattern)
    part = reader.alternatives(depth=0)
    if reader.at < len(pattern):
        raise BadPattern("has a `)` that closes nothing")
    return part.weight


class _Reader:
    """Reads one pattern from left to right; `at` is the place, `choices` what has been left open so far."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.choices = 0

    def alternatives(self, *, depth: int) -> _Part:
        if depth > DEPTH_MAX:
            raise BadPattern(f"has groups more than {DEPTH_MAX} deep")
        branches = [self._sequence(depth=depth)]
        while self._peek() == "|":
            self.at += 1
            self._choose()
            branches.append(self._sequence(depth=depth))
        return _Part(
            any(branch.may_be_empty for branch in branches),
            all(branch.is_anchored for branch in branches),
            any(branch.is_endless for branch in branches),
            sum(branch.weight for branch in branches),
        )

    def _sequence(self, *, depth: int) -> _Part:
        whole = _NOTHING
        while self._peek() not in ("", "|", ")"):
            part = self._quantified(self._atom(depth=depth))
            whole = _Part(
                whole.may_be_empty and part.may_be_empty,
                whole.is_anchored or part.is_anchored,
                whole.is_endless or part.is_endless,
                whole.weight + part.weight,
            )
            if whole.weight > WEIGHT_MAX:
                raise BadPattern(f"has more than {WEIGHT_MAX} places once its repetitions are written out")
        return whole

    def _atom(self, *, depth: int) -> _Part:
        found = self.pattern[self.at]
        if found in "*+?":
            raise BadPattern(f"has a `{found}` that repeats nothing")
        if found in "^$":
            self.at += 1
            return _NOTHING
        if found == "(":
            return self._group(depth=depth)
        if found == "[":
            self._skip(_CLASS, "has a `[` that is never closed")
        elif found == "\\":
            start = self.at
            self._skip(_NO_REFERENCE, "refers back, or ends in a backslash")
            if self.pattern[start + 1] in "bB":
                return _NOTHING
        else:
            self.at += 1
        return _CHARACTER

    def _group(self, *, depth: int) -> _Part:
        self._skip(_GROUP, "")
        if self._peek() == "?":
            raise BadPattern("looks ahead or behind, or sets flags")
        inside = self.alternatives(depth=depth + 1)
        if self._peek() != ")":
            raise BadPattern("has a `(` that is never closed")
        self.at += 1
        return inside

    def _quantified(self, part: _Part) -> _Part:
        while match := _QUANTIFIER.match(self.pattern, self.at):
            self.at = match.end()
            part = self._repeated(part, match)
        return part

    def _repeated(self, part: _Part, match: re.Match[str]) -> _Part:
        if self._peek() in ("?", "+"):
            self.at += 1  # lazy or possessive: the same texts match
        least, most = _bounds(match)
        if most is not None and most < least:
            raise BadPattern("has a repetition whose bounds are the wrong way round")
        if most != least:
            self._choose()
        if most is None or most > 1:
            if part.may_be_empty:
                raise BadPattern("repeats what may be empty")
            if part.is_endless and not part.is_anchored:
                raise BadPattern("has a repetition directly inside a repetition")
        return _Part(
            part.may_be_empty or least == 0,
            part.is_anchored and most == least and least > 0,
            part.is_endless or most is None,
            part.weight * (least + 1 if most is None else most),
        )

    def _choose(self) -> None:
        self.choices += 1
        if self.choices > CHOICES_MAX:
            raise BadPattern(f"has more than {CHOICES_MAX} alternatives and open repetitions")

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _skip(self, what: re.Pattern[str], or_else: str) -> None:
        match = what.match(self.pattern, self.at)
        if match is None:
            raise BadPattern(or_else)
        self.at = match.end()


_SIGNS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


def _bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    if quantifier[0] in _SIGNS:
        return _SIGNS[quantifier[0]]
    least = int(quantifier[1])
    if quantifier[2] is None:
        return least, least
    return least, int(quantifier[3]) if quantifier[3] else None
