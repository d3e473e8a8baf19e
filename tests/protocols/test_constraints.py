"""T35, REPORTS 64: is a schema, grammar, pattern or tool that would hurt an engine refused, and every honest one let through?"""

import json
import re
import time
import warnings
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Deployment, Task
from headrace.core.request import Endpoint
from headrace.protocols import openai, patterns, schemas

VALID: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
AT = "response_format.json_schema.schema"


def parse(**fields: Any) -> openai.ParsedBody:
    return openai.parse_body(Endpoint.CHAT_COMPLETIONS, json.dumps({**VALID, **fields}).encode())


def formatted(schema: Any) -> dict[str, Any]:
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "strict": True, "schema": schema},
        }
    }


def param_of(**fields: Any) -> str | None:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    assert refused.value.message.startswith(refused.value.param or "")
    return refused.value.param


def nested(depth: int) -> Any:
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "array", "items": schema}
    return schema


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 10**9, "pattern": "^[a-z]+(-[a-z]+)*$"},
        "age": {"type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 200.5},
        "tags": {"type": "array", "items": {"enum": ["a", "b", None, 1]}, "maxItems": 10},
        "children": {"type": "array", "items": {"$ref": "#/$defs/person"}},
        "home": {"anyOf": [{"$ref": "#/$defs/home"}, {"type": "null"}]},
    },
    "required": ["name"],
    "additionalProperties": False,
    "patternProperties": {"^x-": True},
}
HONEST = [
    {},
    True,
    PERSON | {"$defs": {"person": PERSON, "home": {"const": {"a": 1}}}},
    {"type": "object", "properties": {"next": {"$ref": "#"}}},
    {"$ref": "#/definitions/a~1b", "definitions": {"a/b": {"type": "string"}}},
    {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "string"}}},
    {"items": [{"type": "string"}, {"type": "number"}], "additionalItems": False},
    {"$ref": "#/prefixItems/1", "prefixItems": [{"type": "string"}, {"not": {"type": "null"}}]},
    {"$ref": "#/title", "title": "no schema, and the engine's to refuse"},
    nested(schemas.DEPTH_MAX),
    {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(400)}},
    {"enum": [f"v{i}" for i in range(600)]},
]


@pytest.mark.parametrize("schema", HONEST, ids=range(len(HONEST)))
def test_honest_schemas_pass_wherever_they_stand(schema: Any) -> None:
    if isinstance(schema, dict):
        parse(json_schema=json.dumps(schema), guided_json=schema)
    parse(**formatted(schema))
    parse(response_format={"type": "json_object", "schema": schema}, structured_outputs={"json": schema})
    parse(tools=[{"type": "function", "function": {"name": "f", "description": "d", "parameters": schema}}])


LOOP = {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}
WRONG: list[tuple[Any, str]] = [
    ({"type": "objet"}, ".type"), ({"type": 5}, ".type"), ({"type": []}, ".type"), ({"type": ["string", 1]}, ".type"), ([1], ""), (5, ""),
    ({"properties": {"a": {"type": "objet"}}}, ".properties.a.type"), ({"anyOf": [{}, {"items": {"type": "x"}}]}, ".anyOf[1].items.type"),
    ({"items": [{}, {"type": "x"}]}, ".items[1].type"), ({"not": {"type": "x"}}, ".not.type"), ({"$defs": {"a": 5}}, ".$defs.a"),
    ({"properties": [1]}, ".properties"), ({"anyOf": 5}, ".anyOf"), ({"anyOf": []}, ".anyOf"), ({"items": 5}, ".items"), ({"enum": "a"}, ".enum"),
    ({"enum": []}, ".enum"), ({"required": "a"}, ".required"), ({"required": [1]}, ".required"), ({"minimum": "x"}, ".minimum"),
    ({"minLength": -1}, ".minLength"), ({"minLength": True}, ".minLength"), ({"minLength": 10**9}, ".minLength"), ({"maxItems": 1.5}, ".maxItems"),
    ({"pattern": 5}, ".pattern"), ({"pattern": "^(a$"}, ".pattern"), ({"pattern": "^(a+)+$"}, ".pattern"), ({"patternProperties": {"(": {}}}, ".patternProperties"),
    ({"$ref": "#"}, ".$ref"), (LOOP, ".$ref"), ({"anyOf": [{"$ref": "#"}]}, ".anyOf[0].$ref"), ({"$ref": 5}, ".$ref"),
    ({"$ref": "#/$defs/a"}, ".$ref"), ({"$ref": "#/anyOf/7", "anyOf": [{}]}, ".$ref"), ({"$ref": "http://127.0.0.1/x"}, ".$ref"), ({"$ref": "#name"}, ".$ref"),
    ({"properties": {f"p{i}": {} for i in range(10_000)}}, ""), ({"enum": list(range(10_000))}, ".enum"), (nested(schemas.DEPTH_MAX + 1), ".items" * (schemas.DEPTH_MAX + 1)),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "where"), WRONG, ids=range(len(WRONG)))
def test_a_schema_that_would_hurt_is_refused_at_its_place(schema: Any, where: str) -> None:
    """REPORTS 64."""
    named = param_of(**formatted(schema)) or ""
    assert named == (AT + where)[:300] or (where == "" and named.startswith(AT))
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    assert (param_of(tools=[tool]) or "").startswith("tools[0].function.parameters")


TOOLS: list[tuple[Any, str]] = [
    ({}, "tools[0].type"), ({"type": 1}, "tools[0].type"), ({"type": "function"}, "tools[0].function"),
    ({"type": "function", "function": {}}, "tools[0].function"), ({"type": "function", "function": {"name": 1}}, "tools[0].function"),
    ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"), ({"type": "function", "function": {"name": "x" * 257}}, "tools[0].function.name"),
    ({"type": "function", "function": {"name": "f", "description": 5}}, "tools[0].function"),
    ({"type": "function", "function": {"name": "f", "parameters": "x"}}, "tools[0].function.parameters"),
]  # fmt: skip
FIELDS: list[tuple[str, Any, str]] = [
    ("response_format", {}, "response_format.type"), ("response_format", {"type": 5}, "response_format.type"),
    ("response_format", {"type": "json_schema"}, "response_format.json_schema"),
    ("response_format", {"type": "structural_tag", "structures": ["x" * 70_000]}, "response_format.structures"),
    ("structured_outputs", 5, "structured_outputs"), ("structured_outputs", {"regex": 5}, "structured_outputs.regex"),
    ("structured_outputs", {"choice": "a"}, "structured_outputs.choice"), ("structured_outputs", {"choice": ["a"] * 129}, "structured_outputs.choice"),
    ("grammar", "a" * 1_000_000, "grammar"), ("grammar", 5, "grammar"), ("ebnf", "|" * 10_001, "ebnf"), ("guided_grammar", {}, "guided_grammar"),
    ("regex", "(a+)+", "regex"), ("guided_regex", "(?=a)", "guided_regex"), ("json_schema", "{", "json_schema"), ("json_schema", "[]", "json_schema"),
    ("guided_json", 5, "guided_json"), ("grammar_triggers", 5, "grammar_triggers"), ("samplers", ["x"] * 1000, "samplers"), ("lora", "x", "lora"),
    ("functions", [{"name": "f", "parameters": {"type": "x"}}], "functions[0].parameters.type"),
]  # fmt: skip


@pytest.mark.parametrize(("tool", "param"), TOOLS)
def test_a_tool_that_no_engine_can_read_is_refused(tool: Any, param: str) -> None:
    assert param_of(tools=[tool]) == param


@pytest.mark.parametrize(("name", "value", "param"), FIELDS)
def test_constraints_under_every_name_are_bounded(name: str, value: Any, param: str) -> None:
    assert param_of(**{name: value}) == param


def test_other_endpoints_than_chat_are_checked_too() -> None:
    values: tuple[Any, ...] = (5, [], "x")
    for value in values:
        with pytest.raises(InvalidRequest) as refused:
            schemas.check_constraints({"response_format": value})
        assert refused.value.param == "response_format"


def test_constraints_that_say_nothing_pass() -> None:
    names = sorted(schemas.CONSTRAINING_FIELDS)
    assert parse(**dict.fromkeys(names)).constraint_pieces == 0
    assert parse(tools=[{"type": "custom", "custom": {"name": "f"}}]).constraint_pieces == 0
    assert parse(tools=[{"type": "function", "function": {"name": "f"}}]).constraint_pieces == 0
    parse(grammar='root ::= "a" | "b"\n', guided_choice=["a", "b"], structured_outputs={"grammar": "root"})
    assert param_of(grammar="a", json_schema={}) == "grammar"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [{"type": 1}]}, "messages[0].tool_calls[0].type"),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": ""}}]},
            "messages[0].tool_calls[0].function.name",
        ),
        ({"role": "tool", "content": "x", "tool_call_id": 5}, "messages[0].tool_call_id"),
        ({"role": "user", "content": "x", "name": 5}, "messages[0].name"),
        ({"role": "assistant", "content": "x", "reasoning_content": 5}, "messages[0].reasoning_content"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
    ],
)
def test_messages_that_engines_answer_with_500_are_refused(message: dict[str, Any], param: str) -> None:
    """A caller's mistake must not look like the engine's."""
    assert param_of(messages=[message]) == param


def deployment(**more: Any) -> Deployment:
    return Deployment("m", "m", frozenset({Task.CHAT}), "unpinned", **more)


def test_what_an_engine_can_bear_is_its_own_bound() -> None:
    parsed = parse(**formatted({"enum": list(range(100))}))
    openai.check_against(deployment(), parsed)
    openai.check_against(deployment(constraint_pieces_max=parsed.constraint_pieces), parsed)
    with pytest.raises(InvalidRequest) as refused:
        openai.check_against(deployment(constraint_pieces_max=parsed.constraint_pieces - 1), parsed)
    assert refused.value.param == "response_format"


# Token ids


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (Endpoint.CHAT_COMPLETIONS, {**VALID, "logit_bias": {"999999": 5, "1": 1}}, "logit_bias"),
        (Endpoint.CHAT_COMPLETIONS, {**VALID, "stop_token_ids": [1, 999999]}, "stop_token_ids"),
        (Endpoint.CHAT_COMPLETIONS, {**VALID, "allowed_token_ids": [999999]}, "allowed_token_ids"),
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": [1, 999999]}, "prompt"),
        (Endpoint.EMBEDDINGS, {"model": "m", "input": [1, 999999]}, "input"),
        (Endpoint.EMBEDDINGS, {"model": "m", "input": [[1], [999999, 2]]}, "input"),
    ],
)
def test_a_token_beyond_the_vocabulary_is_refused(
    endpoint: Endpoint, fields: dict[str, Any], param: str
) -> None:
    """REPORTS 66: known vocabularies exactly, unknown ones by a bound that no model in use reaches."""
    parsed = openai.parse_body(endpoint, json.dumps(fields).encode())
    for known in (0, 49152, 999999):
        with pytest.raises(InvalidRequest) as refused:
            openai.check_against(deployment(vocabulary_tokens=known), parsed)
        assert refused.value.param == param
    openai.check_against(deployment(vocabulary_tokens=1_000_000), parsed)


@pytest.mark.parametrize("key", ["hello", "-5", "", "1.5", "9" * 10, " 1"])
def test_only_token_ids_are_biased(key: str) -> None:
    assert (param_of(logit_bias={key: 1}) or "").startswith("logit_bias")


@pytest.mark.parametrize(
    ("endpoint", "fields", "param"),
    [
        (Endpoint.COMPLETIONS, {"model": "m", "prompt": [1, -7]}, "prompt"),
        (Endpoint.EMBEDDINGS, {"model": "m", "input": [[1], [-1]]}, "input"),
    ],
)
def test_token_ids_are_not_negative(endpoint: Endpoint, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        openai.parse_body(endpoint, json.dumps(fields).encode())
    assert refused.value.param == param


@pytest.mark.parametrize(("name", "value"), [("n_predict", 10**9), ("max_completion_tokens", 10**9)])
def test_an_alias_hides_no_larger_bound(name: str, value: int) -> None:
    """T13: engines differ in which of the names they obey."""
    assert parse(max_tokens=5, **{name: value}).output_tokens_max == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_predict", -1), ("n_cmpl", 0), ("n_probs", 10_000), ("prompt_logprobs", 10_000), ("min_tokens", -1), ("bad_words", ["x"] * 301),
        ("stop_token_ids", list(range(5000))), ("allowed_token_ids", [-1]), ("timings_per_token", 1),
        ("stream_options", {"include_usage": True, "x": "y" * 2000}),
    ],
)  # fmt: skip
def test_words_of_single_engines_are_bounded_too(name: str, value: Any) -> None:
    """T13."""
    assert (param_of(**{name: value}) or "").startswith(name)


def test_answers_are_counted_under_every_name() -> None:
    assert parse(n=1, n_cmpl=1000).choices == parse(best_of=1000).choices == 1000


# Patterns


@pytest.mark.parametrize(
    ("pattern", "weight"),
    [
        ("", 0), ("abc", 3), ("^[a-z]+$", 2), (r"^\d{4}-\d{2}-\d{2}$", 10), (r"^(\d{1,3}\.){3}\d{1,3}$", 15), ("^[a-z0-9]+(?:-[a-z0-9]+)*$", 5),
        (r"^[^@\s]+@[^@\s]+\.[a-z]{2,}$", 9), ("(?P<year>[0-9]{4})", 4), ("(?<year>[0-9]{4})", 4), ("a|b|c", 3), ("a{2}{3}", 6), ("a{", 2), ("x{,3}", 5),
        (r"\b[]a]x\B", 2), (r"[^]\]]+?", 2), ("(ab?)+", 4), (".*", 1), (r"\u0041", 5),
    ],
)  # fmt: skip
def test_honest_patterns_pass_with_their_weight(pattern: str, weight: int) -> None:
    assert patterns.weigh(pattern) == weight


@pytest.mark.parametrize(
    "pattern",
    [
        "^(a+)+$", "(a*)*", "(a?)*", "(a|b+)+", "((a+)+)+", "(a*){3}", "(a{1,1000}){1,1000}", "((a{1,1000}){1,1000}){1,1000}", "(a", "a)", "[a", "*a", "+", "a**b",
        "a||*", "(?=a)b", "(?!a)", "(?<=a)", "(?i)a", r"(a)\1", "a\\", "a{3,1}", "(" * 20 + "a" + ")" * 20, "a" * 1025, "a?" * 65, "|" * 65, "(^)*",
        "(" + "a?" * 30 + ")*", r"\k<a>",
    ],
)  # fmt: skip
def test_catastrophic_and_broken_patterns_are_refused(pattern: str) -> None:
    """T35: what can divide one text in many ways, and what is none."""
    with pytest.raises(patterns.BadPattern):
        patterns.weigh(pattern)


@given(pattern=st.text("ab|()[]{}*+?^$\\.,0139:=<>P-", max_size=40))
def test_whatever_passes_is_a_pattern_that_python_runs_quickly(pattern: str) -> None:
    """No other exception, and no pattern passes that takes a backtracker more than a moment."""
    try:
        weight = patterns.weigh(pattern)
    except patterns.BadPattern:
        return
    assert 0 <= weight <= patterns.WEIGHT_MAX
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what may mean something else in a later Python
            compiled = re.compile(pattern)
    except (re.error, OverflowError):
        return  # dialects differ
    before_s = time.process_time()
    compiled.search("a" * 24 + "!")
    assert time.process_time() - before_s < 2.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.text(max_size=8) | st.sampled_from(["#", "#/a", "#/$defs/a", "object", "array"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["type", "properties", "items", "anyOf", "$ref", "$defs", "a", "pattern", "enum", "required", "not", "minItems", "maximum"]),
        inner, max_size=4,
    ),
    max_leaves=20,
)  # fmt: skip


@given(value=JSON, name=st.sampled_from(sorted(schemas.CONSTRAINING_FIELDS)))
def test_no_constraint_raises_anything_but_invalid_request(value: Any, name: str) -> None:
    try:
        schemas.check_constraints({name: value})
    except InvalidRequest:
        pass


@given(schema=JSON)
def test_no_schema_raises_anything_but_invalid_request(schema: Any) -> None:
    try:
        parse(**formatted(schema))
    except InvalidRequest:
        pass
