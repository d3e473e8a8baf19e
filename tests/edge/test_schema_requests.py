"""T37: requests that are made from the published OpenAPI document, right and wrong ones, against the running service."""

import time
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from requests.structures import CaseInsensitiveDict
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import CHECKS
from schemathesis.core.result import Ok

from headrace.core import errors
from headrace.protocols import bounds, openapi
from tests.edge.conftest import Edge, running_edge

SCHEMA = schemathesis.openapi.from_dict(openapi.document())
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok))
}
KEYED = [label for label, each in OPERATIONS.items() if each.path not in ("/livez", "/readyz")]
WORK = [label for label in OPERATIONS if label.startswith("POST")]
PROMISED: Any = [
    CHECKS.get_one(name)
    for name in (
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
    )
]
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD", "TRACE")
LONG_S = 600.0
MODES = [GenerationMode.POSITIVE, GenerationMode.NEGATIVE]


@pytest.fixture(scope="module")
def service() -> Iterator[Edge]:
    """With short answers, and a key of which no request spends anything."""
    with running_edge(models=("scripted",), tokens=2) as running:
        yield running


def aim(case: Case) -> None:
    """Half of the requests name a model that is there: the others would never reach an engine."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str) and len(case.body) % 2 == 0:
        case.body["model"] = "scripted"
    if "model" in (case.path_parameters or {}) and len(case.path_parameters["model"]) % 2 == 0:
        case.path_parameters["model"] = "scripted"


def call(edge: Edge, case: Case, *, key: str) -> Response:
    case.headers = CaseInsensitiveDict(case.headers or {})
    case.headers.pop("authorization", None)  # a generated one
    return case.call(
        base_url=f"http://127.0.0.1:{edge.service.port}",
        headers={"authorization": f"Bearer {key}"},
        timeout=60,
    )


def check(edge: Edge, case: Case, *, may_fail: bool = False) -> None:
    """What the answer to any request must be; `may_fail` where the engine has been told to."""
    aim(case)
    answer = call(edge, case, key=edge.key)
    case.validate_response(answer, checks=PROMISED)
    if answer.status_code >= 500:
        code = answer.json()["error"]["code"]
        is_late = code == "deadline_exceeded" and bounds.DEADLINE_HEADER in (case.headers or {})
        assert is_late or (may_fail and code == errors.UpstreamError.code), answer.text


def run(
    edge: Edge, label: str, mode: GenerationMode, *, examples: int, number: int, may_fail: bool = False
) -> None:
    """So many requests of one operation; the same ones for the same number."""

    @seed(zlib.crc32(f"{label} {mode.value} {number}".encode()))
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[label].as_strategy(generation_mode=mode))
    def ask(case: Case) -> None:
        check(edge, case, may_fail=may_fail)

    ask()


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("label", KEYED)
def test_every_answer_is_one_that_the_document_names(service: Edge, label: str, mode: GenerationMode) -> None:
    """T37, short: status, content type, headers and body as documented, and no fault of ours for any of them."""
    run(service, label, mode, examples=15 if label in WORK else 6, number=0)


@pytest.mark.slow
@pytest.mark.parametrize("label", WORK)
def test_what_an_engine_fails_at_is_answered_as_the_document_says(service: Edge, label: str) -> None:
    service.engine.set_faults("error:500")
    try:
        run(service, label, GenerationMode.POSITIVE, examples=5, number=0, may_fail=True)
    finally:
        service.engine.set_faults("")


@pytest.mark.long
@pytest.mark.timeout(2 * LONG_S)
def test_ten_minutes_of_requests_are_answered_as_the_document_says(service: Edge) -> None:
    """T37, in full."""
    until_s, number = time.monotonic() + LONG_S, 0
    while time.monotonic() < until_s:
        number += 1
        for label in KEYED:
            for mode in MODES:
                run(service, label, mode, examples=20, number=number)
    assert service.is_healthy()


def path_of(label: str) -> str:
    return label.partition(" ")[2].replace("{model}", "scripted")


@pytest.mark.parametrize("label", OPERATIONS)
def test_a_path_needs_a_key_where_the_document_says_so(service: Edge, label: str) -> None:
    anonymous = Edge(service.engine, service.service, "")
    method = label.partition(" ")[0]
    status = anonymous.ask(method, path_of(label), b"{}" if method == "POST" else None).status
    assert status == (401 if label in KEYED else 200)


@pytest.mark.parametrize("path", sorted({path_of(label) for label in OPERATIONS}))
def test_a_method_that_the_document_does_not_name_is_not_found(service: Edge, path: str) -> None:
    named = {label.partition(" ")[0] for label in OPERATIONS if path_of(label) == path}
    for method in METHODS:
        if method not in named:
            assert service.ask(method, path).status == 404, method


def test_the_generator_takes_all_of_the_document_without_a_complaint() -> None:
    named = {
        f"{method.upper()} {path}" for path, item in openapi.document()["paths"].items() for method in item
    }
    assert set(OPERATIONS) == {label for label in named if not label.startswith("PARAMETERS")}
    SCHEMA.validate()
