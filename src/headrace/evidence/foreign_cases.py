"""What does a case say that was written for another program? One reading for each format, into questions and what is expected.

Only what a check here can tell is taken; everything else is named with its reason, since a case whose condition was dropped
passes everything.
"""

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from headrace.core.errors import ConfigError
from headrace.policies import json_shape, numerals
from headrace.policies.grading import Answers, Check, Contains, Exact, Json, Judged, Numeric, Refuses


class Format(StrEnum):
    """Whose files are read."""

    HEADRACE = "headrace"
    SQUAD = "squad"
    OPENAI_EVALS = "openai-evals"
    INSPECT = "inspect"
    LM_EVAL = "lm-eval"
    PROMPTFOO = "promptfoo"


class Foreign(msgspec.Struct, frozen=True):
    """One case as it was found.

    Attributes:
        where: Line, row or id in the file, for reports.
        passages: Title and text of each.
        problem: Why it can't be taken, or "".
    """

    where: str
    id: str = ""
    question: str = ""
    passages: tuple[tuple[str, str], ...] = ()
    checks: tuple[Check, ...] = ()
    category: str = "answerable"
    problem: str = ""


_QUESTIONS = ("question", "query", "prompt", "input", "problem")
_CONTEXTS = ("context", "passage", "article", "document", "story", "excerpts")
_FINAL = re.compile(r"####\s*(.+)\s*\Z")  # the end of a worked answer


def read(text: str, kind: Format, *, is_exact: bool) -> Iterator[Foreign]:
    """Every case of a file, or why it isn't one.

    Args:
        is_exact: Whether an expected text must be the whole answer; else it must be in it.
    Raises: ConfigError where the file as a whole isn't of that format.
    """
    expected = _exactly if is_exact else _within
    match kind:
        case Format.SQUAD:
            return _squad(text)
        case Format.OPENAI_EVALS:
            return _lines(text, lambda where, row: _chat(where, row, "ideal", expected))
        case Format.INSPECT:
            return _lines(text, lambda where, row: _chat(where, row, "target", expected))
        case Format.LM_EVAL:
            return _lines(text, lambda where, row: _lm_eval(where, row, expected))
        case _:
            return _promptfoo(text)


Expected = Callable[[list[str]], tuple[Check, ...]]


def _within(texts: list[str]) -> tuple[Check, ...]:
    if len(texts) == 1 and (value := _number(texts[0])) is not None:
        return (Numeric(value),)
    return (Contains(all=(tuple(texts),)), Answers())


def _exactly(texts: list[str]) -> tuple[Check, ...]:
    return (Exact(tuple(texts)),)


def _number(text: str) -> float | None:
    """The value of a text that is a number and nothing else."""
    bare = text.strip().removesuffix(".").lstrip("$€£¥ ")
    found = numerals.numbers(bare)
    is_alone = len(found) == 1 and re.fullmatch(r"-?\d[\d.,']*", bare) is not None
    return found[0].value if is_alone else None


def _lines(text: str, read_one: Callable[[str, Mapping[str, Any]], Foreign]) -> Iterator[Foreign]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            row = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            yield Foreign(where, problem="is no JSON object")
            continue
        yield read_one(where, row)


def _texts(value: object) -> list[str]:
    """One text or several; numbers are texts too."""
    listed = value if isinstance(value, list) else [value]
    return [str(each) for each in listed if isinstance(each, str | int | float) and str(each).strip()]


# --- SQuAD ---


def _squad(text: str) -> Iterator[Foreign]:
    try:
        data = msgspec.json.decode(text, type=dict[str, Any])["data"]
        paragraphs = [
            (article.get("title", ""), paragraph["context"], asked)
            for article in data
            for paragraph in article["paragraphs"]
            for asked in paragraph["qas"]
        ]
    except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            'not a file of SQuAD\'s form: {"data": [{"title", "paragraphs": [{"context", "qas": [...]}]}]}'
        ) from error
    for number, (title, context, asked) in enumerate(paragraphs, 1):
        yield _squad_case(f"question {number}", str(title), str(context), asked)


def _squad_case(where: str, title: str, context: str, asked: Any) -> Foreign:
    if not isinstance(asked, dict) or not isinstance(asked.get("question"), str):
        return Foreign(where, problem="has no question")
    id, question = str(asked.get("id", "")), asked["question"]
    passages = ((title.replace("_", " "), context),)
    if asked.get("is_impossible"):
        return Foreign(where, id, question, passages, (Refuses("missing"),), "missing")
    texts = list(dict.fromkeys(_texts([each.get("text") for each in asked.get("answers", [])])))
    if not texts:
        return Foreign(where, id, problem="has no answer")
    return Foreign(where, id, question, passages, _within(texts))


# --- Chats with an ideal or a target ---


def _chat(where: str, row: Mapping[str, Any], target: str, expected: Expected) -> Foreign:
    id = str(row.get("id", ""))
    asked = row.get("input")
    if isinstance(asked, list):
        asked = "\n\n".join(
            each["content"]
            for each in asked
            if isinstance(each, dict) and isinstance(each.get("content"), str) and each["content"]
        )
    if not isinstance(asked, str) or not asked.strip():
        return Foreign(where, id, problem="has no input that is text")
    if row.get("choices"):
        letters = [
            f"{chr(ord('A') + place)}) {choice}" for place, choice in enumerate(_texts(row["choices"]))
        ]
        asked = "\n".join((asked, *letters, "Answer with the letter alone."))
        expected = _exactly
    texts = _texts(row.get(target))
    if not texts:
        return Foreign(where, id, problem=f"has no {target}")
    return Foreign(where, id, asked, (), expected(texts))


# --- lm-eval ---


def _lm_eval(where: str, row: Mapping[str, Any], expected: Expected) -> Foreign:
    document = row.get("doc", row)
    if not isinstance(document, dict):
        return Foreign(where, problem="has no doc that is an object")
    id = str(row.get("doc_id", document.get("id", "")))
    question = next((document[name] for name in _QUESTIONS if isinstance(document.get(name), str)), "")
    if not question:
        return Foreign(where, id, problem=f"has none of {', '.join(_QUESTIONS)}")
    if document.get("choices"):
        return Foreign(where, id, problem="is graded by likelihoods of choices, which no answer shows")
    texts = _texts(row.get("target", document.get("answer")))
    if not texts:
        return Foreign(where, id, problem="has no target")
    final = [found.group(1) if (found := _FINAL.search(each)) else each for each in texts]
    passages = tuple(("", document[name]) for name in _CONTEXTS if isinstance(document.get(name), str))
    return Foreign(where, id, question, passages, expected(final))


# --- promptfoo ---


def _promptfoo(text: str) -> Iterator[Foreign]:
    if not text.lstrip().startswith(("{", "[")):
        for number, row in enumerate(csv.DictReader(io.StringIO(text)), 2):
            said = [value for name, value in row.items() if name and name.startswith("__expected") and value]
            asserts = [_csv_assert(each) for each in said]
            variables = {name: value for name, value in row.items() if name and not name.startswith("__")}
            yield _promptfoo_case(f"row {number}", variables, asserts)
        return
    try:
        whole = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"neither CSV nor JSON: {error}; YAML is read where it is written as JSON"
        ) from error
    tests = whole.get("tests") if isinstance(whole, dict) else whole
    if not isinstance(tests, list):
        raise ConfigError("has no list of tests")
    for number, test in enumerate(tests, 1):
        where = f"test {number}"
        if isinstance(test, dict) and isinstance(test.get("vars"), dict):
            yield _promptfoo_case(where, test["vars"], test.get("assert", []))
        else:
            yield Foreign(where, problem="has no vars")


def _csv_assert(said: str) -> dict[str, Any]:
    """`contains: x`; a text without a kind is the whole answer."""
    kind, colon, value = said.partition(":")
    if colon and re.fullmatch(r"[a-z-]+", kind.strip()):
        return {"type": kind.strip(), "value": value.strip()}
    return {"type": "is-json"} if said.strip() == "is-json" else {"type": "equals", "value": said}


def _promptfoo_case(where: str, variables: Mapping[str, Any], asserts: Any) -> Foreign:
    question = next((variables[name] for name in _QUESTIONS if isinstance(variables.get(name), str)), "")
    if not question:
        return Foreign(where, problem=f"has none of the variables {', '.join(_QUESTIONS)}")
    checks = [_asserted(each) for each in asserts] if isinstance(asserts, list) else []
    if not checks:
        return Foreign(where, problem="expects nothing")
    if unknown := next((each for each in checks if isinstance(each, str)), ""):
        return Foreign(where, problem=unknown)
    passages = tuple(("", variables[name]) for name in _CONTEXTS if isinstance(variables.get(name), str))
    known = tuple(each for each in checks if not isinstance(each, str))
    return Foreign(where, "", question, passages, known)


def _asserted(said: Any) -> Check | str:
    """A check, or why there is none for it."""
    kind = said.get("type") if isinstance(said, dict) else None
    value = said.get("value") if isinstance(said, dict) else None
    texts = _texts(value)
    match kind:
        case "equals" if texts:
            return Exact(tuple(texts))
        case "contains" | "icontains" if texts:
            return Contains(all=(tuple(texts[:1]),))
        case "contains-any" | "icontains-any" if texts:
            return Contains(all=(tuple(_split(texts)),))
        case "contains-all" | "icontains-all" if texts:
            return Contains(all=tuple((each,) for each in _split(texts)))
        case "not-contains" | "not-icontains" if texts:
            return Contains(none=tuple(texts))
        case "is-json":
            schema = value if isinstance(value, dict) else {}
            problem = json_shape.problem_of(schema)
            return f"expects a shape that is not checked here: {problem}" if problem else Json(schema)
        case "llm-rubric" if texts:
            return Judged(texts[0])
        case _:
            return f"expects {kind!r}, which is not checked here"


def _split(texts: list[str]) -> list[str]:
    """A list, or one text with commas, as CSV has it."""
    return [part.strip() for part in texts[0].split(",")] if len(texts) == 1 else texts
