"""The part of JSON Schema that answers are checked by."""

from typing import Any

import pytest

from headrace.policies import json_shape


@pytest.mark.parametrize(
    ("schema", "fitting", "others"),
    [
        ({}, [1, None, "x", []], []),
        ({"type": "integer"}, [1, 1.0, -3], [1.5, True, "1", None]),
        ({"type": "number"}, [1, 1.5], [True, "1"]),
        ({"type": ["string", "null"]}, ["", None], [0, []]),
        ({"type": "boolean"}, [True], [1]),
        ({"enum": ["a", 1]}, ["a", 1], ["b", True]),
        ({"const": False}, [False], [0, None]),
        ({"minimum": 1, "maximum": 3}, [1, 3, "none", True], [0, 4]),
        ({"minLength": 1, "maxLength": 2}, ["a", 9], ["", "abc"]),
        ({"minItems": 1, "maxItems": 2, "items": {"type": "string"}}, [["a"], "x"], [[], ["a"] * 3, [1]]),
        ({"required": ["a"]}, [{"a": 1}, []], [{}]),
        (
            {"properties": {"a": {"type": "string"}}, "additionalProperties": False},
            [{}, {"a": "x"}],
            [{"a": 1}, {"b": 1}],
        ),
        (
            {"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
            [{"a": 1, "b": None}],
            [{"b": 1}],
        ),
        ({"properties": {"a": {"items": {"enum": [1]}}}}, [{"a": [1, 1], "b": 2}], [{"a": [1, 2]}]),
    ],
)
def test_a_value_fits_a_schema_or_not(schema: dict[str, Any], fitting: list[Any], others: list[Any]) -> None:
    assert json_shape.problem_of(schema) == ""
    assert all(json_shape.fits(value, schema) for value in fitting)
    assert not any(json_shape.fits(value, schema) for value in others)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ([], "schema is no object"),
        ({"pattern": "a"}, "pattern"),
        ({"$ref": "#"}, "$ref"),
        ({"type": "text"}, "'text'"),
        ({"type": ["text"]}, "'text'"),
        ({"required": "a"}, "schema.required"),
        ({"properties": {"a": {"minimum": "1"}}}, "schema.properties.a.minimum"),
        ({"items": {"items": {"oneOf": []}}}, "schema.items.items"),
        ({"additionalProperties": {"format": "date"}}, "schema.additionalProperties"),
    ],
)
def test_a_schema_that_says_what_is_not_checked_is_refused(schema: Any, words: str) -> None:
    """A rule that is passed over would pass every answer."""
    assert words in json_shape.problem_of(schema)


def test_a_schema_without_an_end_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"items": deep}
    assert "too deep" in json_shape.problem_of(deep)
