"""Does the published OpenAPI document say what the code does?

`headrace openapi > docs/reference/openapi.json` writes it anew.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.core import errors
from headrace.protocols import openai, openapi, shapes

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
DOCUMENT = openapi.document()


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (inner for key, inner in value.items() if key == "$ref")
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def test_the_document_in_the_repository_is_this_one() -> None:
    assert json.loads((REFERENCE / "openapi.json").read_text(encoding="utf-8")) == DOCUMENT


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert len(found) > 30
    for reference in found:
        node = DOCUMENT
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]


def test_its_paths_are_those_of_the_page() -> None:
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    documented = {
        (method.lower(), path.replace("NAME", "{model}"), key == "yes")
        for method, path, key in re.findall(r"^\| (GET|POST) \| `([^`]+)` \| (yes|no) \|", page, re.MULTILINE)
    }
    told = {
        (method, path, operation.get("security") != [])
        for path, item in DOCUMENT["paths"].items()
        for method, operation in item.items()
        if method in ("get", "post")
    }
    assert told == documented


def test_its_headers_are_those_of_the_page() -> None:
    page = (REFERENCE / "http.md").read_text(encoding="utf-8")
    table = page.partition("## Response headers")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE))
    assert set(DOCUMENT["components"]["headers"]) == documented - {"connection"}


def test_every_error_of_the_catalogue_can_answer_work() -> None:
    statuses = {str(kind.status) for kind in errors.catalogue()} - {"499"}
    for path in openai.REQUEST_FIELDS:
        assert set(DOCUMENT["paths"][path.value]["post"]["responses"]) == {"200", *statuses}


def test_the_requests_are_the_structs_that_check_them() -> None:
    for endpoint, kind in openai.REQUEST_FIELDS.items():
        body = DOCUMENT["paths"][endpoint.value]["post"]["requestBody"]["content"]["application/json"]
        name = body["schema"]["$ref"].rpartition("/")[2]
        assert set(DOCUMENT["components"]["schemas"][name]["properties"]) == set(kind.__struct_fields__)
        assert name == shapes.name_of(kind)
