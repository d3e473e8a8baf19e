"""Does a JSON value have the shape that a schema asks for? The part of JSON Schema that answers are described with.

    type, enum, const, required, properties, additionalProperties, items, minItems, maxItems, minLength, maxLength, minimum,
    maximum; `title` and `description` are for readers.

Anything else is refused when the schema is read, not passed over when a value is checked: a rule that is ignored passes
everything. There is no `pattern`, whose time nothing bounds, and no `$ref`.
"""

from collections.abc import Mapping
from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "null": (type(None),),
}
# What each word of a schema must be.
_NUMBER = (int, float)
_WORDS: dict[str, tuple[type, ...]] = {
    "type": (str, list),
    "enum": (list,),
    "const": (object,),
    "required": (list,),
    "properties": (dict,),
    "additionalProperties": (bool, dict),
    "items": (dict,),
    "minItems": _NUMBER,
    "maxItems": _NUMBER,
    "minLength": _NUMBER,
    "maxLength": _NUMBER,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "title": (str,),
    "description": (str,),
}
_DEPTH_MAX = 32


def problem_of(schema: Any, *, at: str = "schema", depth: int = 0) -> str:
    """Why this is no schema that can be checked, or ""."""
    if not isinstance(schema, dict) or depth > _DEPTH_MAX:
        return f"{at} is no object, or too deep"
    for word, said in schema.items():
        if word not in _WORDS:
            return f"{at} says {word!r}, which is not checked here; there is: {', '.join(_WORDS)}"
        if not isinstance(said, _WORDS[word]):
            return f"{at}.{word} can't be {said!r}"
    for name in _listed(schema.get("type")):
        if name not in _TYPES:
            return f"{at}.type is {name!r}; it must be one of {', '.join(_TYPES)}"
    parts = {f"{at}.properties.{name}": part for name, part in schema.get("properties", {}).items()}
    parts |= {f"{at}.{name}": schema[name] for name in ("items",) if name in schema}
    if isinstance(schema.get("additionalProperties"), dict):
        parts[f"{at}.additionalProperties"] = schema["additionalProperties"]
    return next(
        (found for place, part in parts.items() if (found := problem_of(part, at=place, depth=depth + 1))), ""
    )


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether the value has that shape; the schema is one that `problem_of` finds nothing wrong with."""
    return (
        _is_of_type(value, _listed(schema.get("type")))
        and ("enum" not in schema or any(_is_same(value, each) for each in schema["enum"]))
        and ("const" not in schema or _is_same(value, schema["const"]))
        and (not isinstance(value, dict) or _fits_object(value, schema))
        and (not isinstance(value, list) or _fits_list(value, schema))
        and (not isinstance(value, str) or _is_within(len(value), schema, "minLength", "maxLength"))
        and (not _is_number(value) or _is_within(value, schema, "minimum", "maximum"))
    )


def _listed(named: Any) -> list[Any]:
    return named if isinstance(named, list) else [] if named is None else [named]


def _is_of_type(value: Any, names: list[str]) -> bool:
    return not names or any(
        # In JSON true is no number, and 1.0 is an integer.
        (
            isinstance(value, _TYPES[name])
            and (name not in ("number", "integer") or not isinstance(value, bool))
        )
        or (name == "integer" and isinstance(value, float) and value.is_integer())
        for name in names
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_same(value: Any, wanted: Any) -> bool:
    return bool(value == wanted) and isinstance(value, bool) is isinstance(wanted, bool)


def _is_within(size: float, schema: Mapping[str, Any], least: str, most: str) -> bool:
    return bool(schema.get(least, size) <= size <= schema.get(most, size))


def _fits_object(value: dict[str, Any], schema: Mapping[str, Any]) -> bool:
    properties, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    return all(name in value for name in schema.get("required", ())) and all(
        fits(part, properties[name])
        if name in properties
        else fits(part, others)
        if isinstance(others, dict)
        else bool(others)
        for name, part in value.items()
    )


def _fits_list(value: list[Any], schema: Mapping[str, Any]) -> bool:
    return _is_within(len(value), schema, "minItems", "maxItems") and (
        "items" not in schema or all(fits(item, schema["items"]) for item in value)
    )
