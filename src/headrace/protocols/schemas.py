"""Can an engine be given this JSON schema, grammar or tool? Shape and cost are checked; what it means is the engine's.

Engines turn a schema into a grammar: a wrong one made some of them crash, and a large one holds up every stream of the
engine while it is built. So what is wrong is refused here, and how large it is is told as a number of pieces.
"""

from collections.abc import Iterator
from typing import Any, NewType

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.protocols import patterns, strict_json

DEPTH_MAX = 32
PIECES_MAX = 10_000  # of all schemas and grammars in one request
COUNT_MAX = 10_000  # `minItems` and its like: each one is a piece of the grammar
GRAMMAR_BYTES_MAX = 64 * 1024
# What costs an engine more than a schema of its own: a value among many is an alternative of one place in the text, and of
# optional properties any may follow any.
VALUE_PIECES = 4
OPTIONAL_PER_PIECE = 256
NAME_MAX = 256
LIST_MAX = 128

Pieces = NewType("Pieces", int)

TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_MAPS = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas")
_ONES = (
    "additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems", "propertyNames", "contains",
    "not", "if", "then", "else",
)  # fmt: skip
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
# What speaks of the same value as the schema that holds it: a circle of these never comes to an end.
_SAME_VALUE_LISTS, _SAME_VALUE_ONES = ("anyOf", "oneOf", "allOf"), ("not", "if", "then", "else")
_COUNTS_MIN = ("minLength", "minItems", "minProperties", "minContains")
_COUNTS_MAX = ("maxLength", "maxItems", "maxProperties", "maxContains")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")

# Fields of vLLM, SGLang and llama.cpp that hold one.
_SCHEMA_FIELDS = ("json_schema", "guided_json")
_PATTERN_FIELDS = ("regex", "guided_regex")
_GRAMMAR_FIELDS = ("grammar", "ebnf", "guided_grammar")
_LIST_FIELDS = (
    "guided_choice", "grammar_triggers", "preserved_tokens", "dry_sequence_breakers", "samplers", "lora"
)  # fmt: skip
CONSTRAINING_FIELDS = frozenset(
    {"tools", "functions", "response_format", "structured_outputs"}
    | {*_SCHEMA_FIELDS, *_PATTERN_FIELDS, *_GRAMMAR_FIELDS, *_LIST_FIELDS}
)


class _Function(msgspec.Struct, gc=False):
    name: str
    description: str | None = None
    parameters: Any = None


def check_constraints(fields: dict[str, Any]) -> Pieces:
    """Checks whatever in a request constrains the answer, and counts it. Raises InvalidRequest naming the place."""
    check = _Check()
    for index, tool in enumerate(_list(fields.get("tools"), at="tools")):
        check.tool(tool, at=f"tools[{index}]")
    check.response_format(fields.get("response_format"))
    check.structured_outputs(fields.get("structured_outputs"))
    for name in _LIST_FIELDS:
        check.count(VALUE_PIECES * len(_list(fields.get(name), at=name)), at=name)
    for index, function in enumerate(_list(fields.get("functions"), at="functions")):
        check.function(function, at=f"functions[{index}]")
    for name in _SCHEMA_FIELDS:
        check.schema_or_text(fields.get(name), at=name)
    for name in _PATTERN_FIELDS:
        check.pattern(fields.get(name), at=name)
    for name in _GRAMMAR_FIELDS:
        check.grammar(fields.get(name), at=name)
    if fields.get("grammar") is not None and fields.get("json_schema") is not None:
        raise _wrong("grammar", "a grammar and a schema can't both hold; give one of them")
    return Pieces(check.pieces)


class _Check:
    """The checks of one request; `pieces` is what they have counted so far. None is an absent field everywhere."""

    def __init__(self) -> None:
        self.pieces = 0

    def tool(self, tool: Any, *, at: str) -> None:
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str):
            raise _wrong(f"{at}.type", "this field is required")
        if kind == "function":
            self.function(tool.get("function"), at=f"{at}.function")

    def function(self, function: Any, *, at: str) -> None:
        try:
            checked = msgspec.convert(function, _Function)
        except msgspec.ValidationError as error:
            raise _wrong(at, str(error)) from None
        if not 0 < len(checked.name) <= NAME_MAX:
            raise _wrong(f"{at}.name", f"a name has between 1 and {NAME_MAX} characters")
        if checked.parameters is not None:
            self.schema(checked.parameters, at=f"{at}.parameters")

    def response_format(self, asked: Any) -> None:
        if asked is None:
            return
        if not isinstance(asked, dict):
            raise _wrong("response_format", "an object is required")
        if not isinstance(asked.get("type"), str):
            raise _wrong("response_format.type", "this field is required")
        if asked["type"] == "json_schema":
            inner = asked.get("json_schema")
            if not isinstance(inner, dict):
                raise _wrong("response_format.json_schema", "an object is required")
            self.schema_or_text(inner.get("schema"), at="response_format.json_schema.schema")
        self.schema_or_text(asked.get("schema"), at="response_format.schema")
        self.grammar(asked.get("grammar"), at="response_format.grammar")
        self.pattern(asked.get("pattern"), at="response_format.pattern")
        self.text(asked.get("structures"), at="response_format.structures")

    def structured_outputs(self, asked: Any) -> None:
        """vLLM's object of constraints, of which one may be there."""
        if asked is None:
            return
        if not isinstance(asked, dict):
            raise _wrong("structured_outputs", "an object is required")
        self.schema_or_text(asked.get("json"), at="structured_outputs.json")
        self.pattern(asked.get("regex"), at="structured_outputs.regex")
        self.grammar(asked.get("grammar"), at="structured_outputs.grammar")
        choice = _list(asked.get("choice"), at="structured_outputs.choice")
        self.count(VALUE_PIECES * len(choice), at="structured_outputs.choice")
        self.text(asked.get("structural_tag"), at="structured_outputs.structural_tag")

    def grammar(self, asked: Any, *, at: str) -> None:
        if asked is None:
            return
        if not isinstance(asked, str):
            raise _wrong(at, "a text is required")
        self.text(asked, at=at)
        self.count(asked.count("|") + asked.count("\n") + asked.count("{") + 1, at=at)

    def text(self, asked: Any, *, at: str) -> None:
        """Something that we don't look into: only its size is bounded."""
        if len(strict_json.encode(asked)) > GRAMMAR_BYTES_MAX:
            raise _wrong(at, f"more than {GRAMMAR_BYTES_MAX} bytes")

    def pattern(self, asked: Any, *, at: str) -> None:
        if asked is None:
            return
        if not isinstance(asked, str):
            raise _wrong(at, "a text is required")
        try:
            self.count(1 + patterns.weigh(asked) // 16, at=at)
        except patterns.BadPattern as error:
            raise _wrong(at, f"the regular expression {error}") from None

    def schema_or_text(self, asked: Any, *, at: str) -> None:
        """A schema, or the text of one, as SGLang and vLLM take it."""
        if isinstance(asked, str):
            try:
                asked = strict_json.parse_object(asked.encode())
            except InvalidRequest as error:
                raise _wrong(at, error.message) from None
        if asked is not None:
            self.schema(asked, at=at)

    def count(self, pieces: int, *, at: str) -> None:
        self.pieces += pieces
        if self.pieces > PIECES_MAX:
            raise _wrong(at, f"schemas and grammars of one request have more than {PIECES_MAX} pieces")

    def schema(self, root: Any, *, at: str) -> None:
        """One whole schema."""
        references: list[tuple[dict[str, Any], str]] = []
        rest: list[tuple[Any, str, int]] = [(root, at, 0)]
        while rest:
            node, place, depth = rest.pop()
            if isinstance(node, bool):
                continue
            if not isinstance(node, dict):
                raise _wrong(place, "a schema is an object, or true or false")
            if depth > DEPTH_MAX:
                raise _wrong(place, f"schemas more than {DEPTH_MAX} deep")
            self.count(1, at=place)
            self._keywords(node, place)
            if "$ref" in node:
                references.append((node, place))
            rest.extend((inner, f"{place}.{name}", depth + 1) for name, inner in _inside(node, place))
        _check_references(root, references)

    def _keywords(self, node: dict[str, Any], place: str) -> None:
        """What a schema says of its own value."""
        kind = node.get("type")
        if kind is not None:
            for name in kind if isinstance(kind, list) and kind else (kind,):
                if not isinstance(name, str) or name not in TYPES:
                    raise _wrong(f"{place}.type", f"a type is one of {', '.join(sorted(TYPES))}")
        if "enum" in node:
            values = node["enum"]
            if not isinstance(values, list) or not values:
                raise _wrong(f"{place}.enum", "a list that isn't empty is required")
            self.count(VALUE_PIECES * len(values), at=f"{place}.enum")
        self.pattern(node.get("pattern"), at=f"{place}.pattern")
        for name in _MAPS:
            if not isinstance(node.get(name, {}), dict):
                raise _wrong(f"{place}.{name}", "an object is required")
        for pattern in node.get("patternProperties", ()):
            self.pattern(pattern, at=f"{place}.patternProperties")
        required = node.get("required")
        if required is not None and not (
            isinstance(required, list) and all(isinstance(name, str) for name in required)
        ):
            raise _wrong(f"{place}.required", "a list of names is required")
        optional = len(node.get("properties", ())) - len(required or ())
        if optional > 0:
            self.count(optional * optional // OPTIONAL_PER_PIECE, at=f"{place}.properties")
        for name in _COUNTS_MIN + _COUNTS_MAX:
            value = node.get(name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise _wrong(f"{place}.{name}", "a whole number of at least 0 is required")
            if value is not None and name in _COUNTS_MIN and value > COUNT_MAX:
                raise _wrong(f"{place}.{name}", f"at most {COUNT_MAX}")
        for name in _NUMBERS:
            value = node.get(name)
            # `exclusiveMinimum` was a boolean in older drafts.
            if value is not None and not isinstance(value, int | float):
                raise _wrong(f"{place}.{name}", "a number is required")


def _inside(node: dict[str, Any], place: str) -> Iterator[tuple[str, Any]]:
    """The schemas in a schema, by the way to them."""
    for name in _MAPS:
        yield from ((f"{name}.{key[:64]}", inner) for key, inner in node.get(name, {}).items())
    for name in _LISTS:
        found = node.get(name)
        if found is None:
            continue
        if not isinstance(found, list) or not found:
            raise _wrong(f"{place}.{name}", "a list that isn't empty is required")
        yield from ((f"{name}[{index}]", inner) for index, inner in enumerate(found))
    for name in _ONES:
        if name in node:
            yield name, node[name]
    items = node.get("items")
    if isinstance(items, list):
        yield from ((f"items[{index}]", inner) for index, inner in enumerate(items))
    elif items is not None:
        yield "items", items


def _check_references(root: Any, references: list[tuple[dict[str, Any], str]]) -> None:
    """Every `$ref` leads somewhere, and none leads back to itself without a step into the value.

    A list that holds lists of its own kind is a fine schema; one that is only a reference to itself is none.
    """
    targets = {id(node): _resolve(root, node["$ref"], place) for node, place in references}
    done: set[int] = set()
    for start, place in references:
        # Depth first, with the way back on the stack: a node met again while it is still open closes a circle.
        open_nodes: set[int] = set()
        stack: list[tuple[Any, bool]] = [(start, False)]
        while stack:
            node, is_left = stack.pop()
            if is_left:
                open_nodes.discard(id(node))
                done.add(id(node))
            elif id(node) in open_nodes:
                raise _wrong(f"{place}.$ref", "the reference leads back to itself")
            elif isinstance(node, dict) and id(node) not in done:
                open_nodes.add(id(node))
                stack.append((node, True))
                if id(node) in targets:
                    stack.append((targets[id(node)], False))
                stack.extend((node[name], False) for name in _SAME_VALUE_ONES if name in node)
                for inner in map(node.get, _SAME_VALUE_LISTS):
                    # A reference may lead to what is no schema at all, which is the engine's to say.
                    stack.extend((each, False) for each in (inner if isinstance(inner, list) else ()))


def _resolve(root: Any, reference: Any, place: str) -> Any:
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        raise _wrong(
            f"{place}.$ref", "only references within the schema are followed, such as `#/$defs/name`"
        )
    node = root
    for step in reference.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal() and len(name) < 6 and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            raise _wrong(f"{place}.$ref", "the reference leads nowhere")
    return node


def _list(asked: Any, *, at: str) -> list[Any]:
    if asked is None:
        return []
    if not isinstance(asked, list) or len(asked) > LIST_MAX:
        raise _wrong(at, f"a list of at most {LIST_MAX} is required")
    return asked


def _wrong(at: str, what: str) -> InvalidRequest:
    place = at[:300]
    return InvalidRequest(f"{place}: {what}", param=place)
