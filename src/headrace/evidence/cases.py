"""Which cases are in a set, and which set is it? JSONL files of two kinds, tuning and acceptance, that are kept apart.

The first line of a file says what it is; each further line is a case:

    {"name": "document-assistant", "set": "acceptance", "version": 1, "cases": 20, "digest": "sha256:...", "instructions": {"en": "..."}}
    {"id": "en-loan", "language": "en", "category": "answerable", "passages": [...], "question": "...", "checks": [...]}

The digest is over the instructions and the bytes of all cases, so a set that was changed is another set, or an error. A set's two
files lie side by side, and a case that is in both of them, by its id or by its text, is an error too: what was tuned on can't be
evidence.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from headrace.core.errors import ConfigError
from headrace.policies import answer_text, grading, json_shape, likeness
from headrace.policies.grading import Check, Cites, Given, Json, Supported
from headrace.policies.quality import SetKind

OWN_SETS = Path(__file__).parent / "sets"
CASES_MAX = 10_000
FILE_BYTES_MAX = 64 * 1024 * 1024

Word = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")]


class _Strict(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Header(_Strict, frozen=True, omit_defaults=True):
    """What a file is.

    Attributes:
        version: Grows with every change.
        cases: How many there are.
        instructions: The system message by language; part of the set, as another one asks something else.
        about: For readers.
    """

    name: Word
    set: SetKind
    version: Annotated[int, msgspec.Meta(ge=1)]
    instructions: dict[str, str]
    cases: int = 0
    digest: str = ""
    about: str = ""


class Passage(_Strict, frozen=True, omit_defaults=True):
    """What the application retrieved; `id` is how an answer cites it."""

    id: Annotated[str, msgspec.Meta(pattern=r"^[a-z]{0,8}[0-9]{1,4}\Z")]
    text: str
    title: str = ""


class Case(_Strict, frozen=True, omit_defaults=True):
    """One question, and what a right answer is.

    Attributes:
        category: What it tests: "answerable", "missing", "conflict", "refusal", "format", or a word of your own.
        checks: All must hold.
    """

    id: Word
    language: Word
    category: Word
    question: Annotated[str, msgspec.Meta(min_length=1)]
    checks: Annotated[tuple[Check, ...], msgspec.Meta(min_length=1)]
    passages: tuple[Passage, ...] = ()
    output_tokens_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 256

    @property
    def given(self) -> Given:
        """What its answers had to go by."""
        return Given(
            self.question, {passage.id: f"{passage.title} {passage.text}" for passage in self.passages}
        )


class CaseSet(msgspec.Struct, frozen=True):
    """A whole file, checked."""

    header: Header
    cases: tuple[Case, ...]

    @property
    def label(self) -> str:
        """For people and logs: `document-assistant/acceptance@1`."""
        return f"{self.header.name}/{self.header.set}@{self.header.version}"


_decode_header = msgspec.json.Decoder(Header).decode
_decode_case = msgspec.json.Decoder(Case).decode


def find(named: str, kind: SetKind, *, data: Path) -> Path:
    """The file of a set: a path, or a name in `cases/` of the data directory, or the name of one that comes with headrace.

    Raises ConfigError with what there is.
    """
    if named.endswith(".jsonl") or "/" in named:
        return Path(named)
    for folder in (data / "cases", OWN_SETS):
        if (file := folder / named / f"{kind}.jsonl").is_file():
            return file
    known = sorted({path.name for folder in (data / "cases", OWN_SETS) for path in folder.glob("*/")})
    raise ConfigError(
        f"no set of cases {named!r} ({kind}): give a .jsonl file, or one of: {', '.join(known)};"
        f" sets of your own lie in {data / 'cases'}/NAME/{kind}.jsonl"
    )


def load(path: Path, *, expected: SetKind) -> CaseSet:
    """Reads and checks a file, and that it has no case in common with its counterpart beside it.

    Raises ConfigError, with the line, for everything that isn't as it should be.
    """
    loaded = read(path)
    header = loaded.header
    if header.set is not expected:
        raise ConfigError(
            f"{path} is the {header.set} set, and {expected} was asked for; say `--set {header.set}` if that is meant"
            + (": its use is recorded" if header.set is SetKind.ACCEPTANCE else "")
        )
    if header.digest != (found := digest_of(header, loaded.cases)):
        raise ConfigError(
            f"{path} says digest {header.digest or '-'}, and its cases have {found}: it was changed after it was sealed."
            f" If that was meant, give it a new version and seal it: headrace eval --cases {path} --seal"
        )
    other = SetKind.TUNING if expected is SetKind.ACCEPTANCE else SetKind.ACCEPTANCE
    beside = path.with_name(f"{other}.jsonl")
    if beside.is_file() and beside != path:
        check_apart(loaded, read(beside), where=f"{path} and {beside}")
    return loaded


def read(path: Path) -> CaseSet:
    """As `load`, but for what concerns the set as a whole."""
    try:
        with path.open("rb") as file:
            lines = file.read(FILE_BYTES_MAX + 1).splitlines()
            if file.read(1):
                raise ConfigError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    if not lines:
        raise ConfigError(f"{path} is empty: its first line says which set it is")
    header = _decoded(path, 1, lines[0])
    cases = tuple(_case(path, number, line) for number, line in enumerate(lines[1:], 2) if line.strip())
    if not 0 < len(cases) <= CASES_MAX:
        raise ConfigError(f"{path} must have 1 to {CASES_MAX} cases, it has {len(cases)}")
    for case in cases:
        if case.language not in header.instructions:
            raise ConfigError(f"{path}: case {case.id}: no instruction in language {case.language!r}")
    _check_unique(cases, where=str(path))
    return CaseSet(header, cases)


def seal(path: Path) -> Header:
    """Writes number of cases and digest into the first line; the version is the author's to raise."""
    found = read(path)
    header = msgspec.structs.replace(
        found.header, cases=len(found.cases), digest=digest_of(found.header, found.cases)
    )
    _, _, rest = path.read_bytes().partition(b"\n")
    path.write_bytes(msgspec.json.encode(header) + b"\n" + rest)
    return header


def digest_of(header: Header, cases: Iterable[Case]) -> str:
    """`sha256:...` over everything that decides what is asked and what is right, however the file is laid out."""
    content = [header.name, header.set, header.version, header.instructions, list(cases)]
    return "sha256:" + hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def check_apart(some: CaseSet, others: CaseSet, *, where: str) -> None:
    """Raises ConfigError if a case is in both: by its id, by its question and passages in whatever writing, or by a passage
    that is nearly one of the other's: questions about one document belong on one side."""
    for name, key in (("id", _id_of), ("text", _text_of)):
        common = {key(case): case.id for case in others.cases}
        twice = sorted(case.id for case in some.cases if key(case) in common)
        if twice:
            raise ConfigError(
                f"{where} have {len(twice)} cases in common by their {name}, the first is {twice[0]}:"
                " what is tuned on can't be evidence; take them out of one of the two"
            )
    documents = [
        {case.id: [passage.text for passage in case.passages] for case in each.cases}
        for each in (some, others)
    ]
    for mine, other in likeness.near(*documents):
        raise ConfigError(
            f"{where}: {mine} and {other} have passages of one document, or of two that are nearly the same:"
            " what is tuned on can't be evidence; put cases about one document on one side"
        )


def messages(case: Case, header: Header) -> list[dict[str, str]]:
    """The prompt: the set's instruction, then the passages under their ids, then the question."""
    excerpts = "\n\n".join(
        f"[{passage.id}] {passage.title + ': ' if passage.title else ''}{passage.text}"
        for passage in case.passages
    )
    asked = f"{excerpts}\n\n{case.question}" if excerpts else case.question
    return [
        {"role": "system", "content": header.instructions[case.language]},
        {"role": "user", "content": asked},
    ]


def needs_judge(cases: Iterable[Case]) -> bool:
    """Whether a judge model must be asked."""
    return any(isinstance(check, grading.Judged) for case in cases for check in case.checks)


def _decoded(path: Path, number: int, line: bytes) -> Header:
    try:
        return _decode_header(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}:{number}: not the header of a set of cases: {error}") from error


def _case(path: Path, number: int, line: bytes) -> Case:
    try:
        case = _decode_case(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}:{number}: {error}") from error
    known = {passage.id for passage in case.passages}
    for check in case.checks:
        if isinstance(check, Cites) and (unknown := {*check.passages, *check.also} - known):
            raise ConfigError(f"{path}:{number}: case {case.id} has no passage {min(unknown)!r} to cite")
        if isinstance(check, Supported) and (problem := _unheld(check, case)):
            raise ConfigError(f"{path}:{number}: case {case.id}: {problem}")
        if isinstance(check, Json) and (problem := json_shape.problem_of(check.schema)):
            raise ConfigError(f"{path}:{number}: case {case.id}: {problem}")
    return case


def _unheld(check: Supported, case: Case) -> str:
    """Why a claim can't be supported as the case says, or ""."""
    texts = case.given.passages
    for claim in check.claims:
        for label in claim.passages:
            if label not in texts:
                return f"there is no passage {label!r} to support a claim"
            held = grading.Contains(all=(claim.any,))
            if grading.grade(held, texts[label], case.given) is not None:
                return f"passage {label!r} holds none of the wordings of a claim: {', '.join(claim.any)}"
    return ""


def _check_unique(cases: tuple[Case, ...], *, where: str) -> None:
    seen: set[str] = set()
    for case in cases:
        if case.id in seen:
            raise ConfigError(f"{where}: two cases have the id {case.id}")
        seen.add(case.id)


def _id_of(case: Case) -> str:
    return case.id


def _text_of(case: Case) -> str:
    return answer_text.normalised("\n".join((case.question, *(passage.text for passage in case.passages))))
