"""How do cases that were written for another program become a set of one's own? Read, checked, numbered and sealed."""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from headrace.core.errors import ConfigError
from headrace.evidence import cases as case_files
from headrace.evidence import foreign_cases
from headrace.evidence.cases import CASES_MAX, FILE_BYTES_MAX, Case, Header, Passage
from headrace.evidence.foreign_cases import Foreign, Format
from headrace.policies.quality import SetKind

_NOT_OF_A_WORD = re.compile(r"[^A-Za-z0-9._-]+")
_ID_CHARACTERS = 56
_INSTRUCTIONS = {
    "en": "Answer the question. Where there are numbered excerpts, go by them alone; if they don't hold the answer, say so.",
    "zh": "回答问题。如果给出了编号的摘录，只依据摘录回答；如果摘录中没有答案，请说明没有找到。",
}


class Imported(NamedTuple):
    """What came of a file.

    Attributes:
        left: Why cases were left out, with how many and where the first of them is.
    """

    header: Header
    taken: int
    left: dict[str, tuple[int, str]]
    categories: dict[str, int]


def convert(
    source: Path, kind: Format, target: Path, *, into: SetKind, language: str, is_exact: bool
) -> Imported:
    """Writes a sealed set. Raises ConfigError where there is nothing to take, or something is there already."""
    if target.exists():
        raise ConfigError(f"{target} is there already: name another file with --out, or remove it")
    if target.stem != into.value and target.name in ("tuning.jsonl", "acceptance.jsonl"):
        raise ConfigError(f"{target} is the name of the other set: say --set {target.stem} if that is meant")
    found = list(_own(source) if kind is Format.HEADRACE else _foreign(source, kind, language, is_exact))
    taken = [each for each in found if isinstance(each, Case)]
    left = [each for each in found if isinstance(each, Foreign)]
    reasons: dict[str, tuple[int, str]] = {}
    for each in left:
        count, where = reasons.get(each.problem, (0, each.where))
        reasons[each.problem] = (count + 1, where)
    if not 0 < len(taken) <= CASES_MAX:
        why = "; ".join(f"{problem} ({count}, first {where})" for problem, (count, where) in reasons.items())
        raise ConfigError(f"{source}: a set has 1 to {CASES_MAX} cases, and {len(taken)} can be taken: {why}")
    name = _NOT_OF_A_WORD.sub("-", target.parent.name or "imported").strip("-.") or "imported"
    languages = {case.language for case in taken}
    header = Header(
        name=name,
        set=into,
        version=1,
        instructions={each: _INSTRUCTIONS.get(each, _INSTRUCTIONS["en"]) for each in sorted(languages)},
        about=f"Imported from {source.name} ({kind}).",
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"\n".join(map(msgspec.json.encode, (header, *taken))) + b"\n")
    try:
        sealed = case_files.seal(target)
        case_files.load(target, expected=into)  # with its counterpart beside it
    except ConfigError:
        target.unlink()
        raise
    return Imported(sealed, len(taken), reasons, dict(Counter(case.category for case in taken)))


def _text(source: Path) -> str:
    try:
        with source.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{source}: {error.strerror}") from error
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{source} is larger than {FILE_BYTES_MAX} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source} is not UTF-8: {error}") from error


def _own(source: Path) -> Iterable[Case | Foreign]:
    """Cases line by line, with a header or without."""
    for number, line in enumerate(_text(source).splitlines(), 1):
        if not line.strip():
            continue
        try:
            yield msgspec.json.decode(line, type=Case)
        except msgspec.DecodeError:
            is_header = number == 1 and _is_header(line)
            if not is_header:
                yield Foreign(f"line {number}", problem="is no case of this form")


def _is_header(line: str) -> bool:
    try:
        msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError:
        return False
    return True


def _foreign(source: Path, kind: Format, language: str, is_exact: bool) -> Iterable[Case | Foreign]:
    taken: set[str] = set()
    try:
        for number, found in enumerate(foreign_cases.read(_text(source), kind, is_exact=is_exact), 1):
            if found.problem:
                yield found
                continue
            id = _id(found, number)
            if id in taken:
                id = f"{id}-{number}"
            taken.add(id)
            yield _case(found, id, language)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error.message}") from error


def _id(found: Foreign, number: int) -> str:
    named = _NOT_OF_A_WORD.sub("-", found.id).strip("-._")[:_ID_CHARACTERS]
    return named or f"case-{number}"


def _case(found: Foreign, id: str, language: str) -> Case:
    passages = tuple(
        Passage(str(number), text, title) for number, (title, text) in enumerate(found.passages, 1)
    )
    return Case(id, language, found.category, found.question, found.checks, passages)
