"""Does the service do what its contract says? Every bound at its edge and beyond, every error, and who is told what."""

import json
from pathlib import Path

import msgspec
import pytest

from headrace.core.request import Endpoint
from headrace.protocols.bounds import DEADLINE_HEADER, Bound, Measure
from headrace.protocols.contract import Contract
from tests.edge.conftest import Edge
from tests.support import measured
from tests.support.http_answers import Answer
from tests.support.provider import wait_until


def contract_of(edge: Edge, model: str = "scripted") -> Contract:
    answer = edge.ask("GET", f"/v1/models/{model}/contract")
    assert answer.status == 200
    return msgspec.json.decode(answer.body, type=Contract)


@pytest.fixture(scope="module")
def agreed(edge: Edge) -> Contract:
    return contract_of(edge)


def ask(edge: Edge, endpoint: Endpoint, bound: Bound, amount: float | int) -> Answer:
    """A request that measures that much."""
    path, body = endpoint.value, measured.BODIES[endpoint]
    text = json.dumps(body).encode()
    if bound.field == "body":
        return edge.ask("POST", path, text + b" " * (int(amount) - len(text)))
    if bound.field == "head":
        named = 3  # host, authorization and content-length
        headers = "".join(f"x-{number}: a\r\n" for number in range(int(amount) - named))
        head = f"POST {path} HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {edge.key}\r\n{headers}"
        answers, _ = edge.send(f"{head}content-length: {len(text)}\r\n\r\n".encode() + text, count=1)
        return answers[0]
    if bound.field.startswith("header "):
        own = "xyz"[list(Endpoint).index(endpoint)]  # no two endpoints name the same work
        value = str(amount) if bound.measure is Measure.VALUE else own * int(amount)
        return edge.post(path, body, **{bound.field.removeprefix("header "): value})
    return edge.post(path, measured.body_of(endpoint, bound, amount))


@pytest.mark.parametrize(("endpoint", "bound"), measured.cases(), ids=measured.name)
def test_a_bound_is_where_the_contract_says(
    edge: Edge, agreed: Contract, endpoint: Endpoint, bound: Bound
) -> None:
    """Inside of it the engine gets the request; outside it is refused with the contract's own status and code."""
    (terms,) = [each for each in agreed.endpoints if each.path == endpoint.value]
    assert bound in terms.bounds
    for inside, outside in measured.edges(bound):
        before = edge.requests()
        taken = ask(edge, endpoint, bound, inside)
        if bound.field == "model":  # as long as it may be, and no model's
            assert taken.error["code"] == "model_not_found"
        elif bound.field == f"header {DEADLINE_HEADER}":  # a millisecond is allowed, and may be over at once
            assert taken.status in (200, 504)
        else:
            assert edge.requests() == before + 1, taken.body
        if outside is not None:
            refused = ask(edge, endpoint, bound, outside)
            assert (refused.status, refused.error["code"]) == (bound.status, bound.code)


def test_every_bound_of_the_served_contract_is_tried(agreed: Contract) -> None:
    told = {(each.path, bound.field, bound.measure) for each in agreed.endpoints for bound in each.bounds}
    tried = {(endpoint.value, bound.field, bound.measure) for endpoint, bound in measured.cases()}
    assert told == tried


@pytest.mark.slow
def test_a_key_reads_the_contracts_of_its_own_models_and_nobody_elses_price(edge: Edge) -> None:
    """The price and the limits are those of the key's tenant; of what the key isn't for it learns nothing."""
    service = edge.service
    rich, poor = service.key("rich", requests_per_minute=7), service.key("poor")
    service.cli("prices", "set", "--tenant", "poor", "--currency", "EUR", "--input", "3")
    service.cli("prices", "set", "--tenant", "rich", "--currency", "EUR", "--input", "2")
    narrow = service.cli("keys", "create", "--tenant", "poor", "--model", "org/model").stdout.strip()
    seen = {
        name: Edge(edge.engine, service, key)
        for name, key in (("rich", rich), ("poor", poor), ("narrow", narrow))
    }

    def price(name: str) -> list[str]:
        return [each.price for each in contract_of(seen[name]).billing.prices]

    wait_until(lambda: (price("rich"), price("poor")) == (["2"], ["3"]), what="both prices to hold")
    assert contract_of(seen["rich"]).limits[0].requests_per_minute == 7
    assert contract_of(seen["narrow"], "org/model").model == "org/model"
    for model in ("scripted", "nothing"):
        refused = seen["narrow"].ask("GET", f"/v1/models/{model}/contract")
        assert (refused.status, refused.error["code"]) == (404, "model_not_found")


def test_the_command_shows_what_the_port_says(edge: Edge, tmp_path: Path) -> None:
    """As JSON, as Markdown, and as a page whose text is escaped."""
    service = edge.service
    key = service.key("shown", requests_per_minute=9, concurrency=3)
    told = contract_of(Edge(edge.engine, service, key))
    shown = service.cli("contract", "scripted", "--tenant", "shown", "--json").stdout
    assert msgspec.json.decode(shown, type=Contract) == told
    markdown = service.cli("contract", "scripted", "--tenant", "shown").stdout
    assert all(f"`{error.code}`" in markdown for error in told.errors)
    assert all(f"`{bound.field}`" in markdown for each in told.endpoints for bound in each.bounds)
    assert "| tenant | 9 |" in markdown
    page = tmp_path / "contract.html"
    service.cli("contract", "scripted", "--html", str(page))
    assert "<code>max_tokens</code>" in page.read_text()
    assert "tenant" not in service.cli("contract", "scripted", "--json").stdout.partition('"limits"')[2][:20]


def test_a_contract_of_nobodys_model_or_tenant_is_an_error_that_says_so(edge: Edge) -> None:
    for arguments, said in (
        (("nothing",), "the model `nothing` does not exist"),
        (("scripted", "--tenant", "nobody"), "nobody"),
    ):
        done = edge.service.cli("contract", *arguments, check=False)
        assert done.returncode == 2
        assert said in done.stderr


def test_the_served_openapi_document_is_the_published_one(edge: Edge) -> None:
    published = (Path(__file__).parents[2] / "docs" / "reference" / "openapi.json").read_text()
    assert edge.ask("GET", "/openapi.json").json == json.loads(published)


def test_a_model_whose_name_ends_like_the_path_can_be_asked_for(edge: Edge) -> None:
    """A slash in a name may be percent-encoded, and then it is no part of the path."""
    assert edge.ask("GET", "/v1/models/org%2Fmodel/contract").json["model"] == "org/model"
    assert (
        edge.ask("GET", "/v1/models/org%2Fcontract").error["message"].startswith("the model `org/contract`")
    )
    assert edge.ask("GET", "/v1/models/contract").error["message"].startswith("the model `contract`")
