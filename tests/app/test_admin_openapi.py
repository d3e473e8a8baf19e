"""The admin API's OpenAPI document is its table of routes."""

from headrace.core.roles import Role
from tests.app.conftest import Port


def test_every_route_stands_in_it_with_its_role_and_what_it_takes(port: Port) -> None:
    status, document = port.ask("GET", "/admin/v1/openapi.json", token=port.tokens["viewer"])
    assert status == 200
    operations = {
        (method.upper(), path): operation
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    }
    assert operations.keys() == {(route.method, route.path) for route in port.server.routes}
    for route in port.server.routes:
        operation = operations[route.method, route.path]
        assert operation["x-headrace-role"] == route.role.word
        query = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query"]
        assert tuple(query) == route.query
        if route.fields:
            schema = operation["requestBody"]["content"]["application/json"]["schema"]
            assert tuple(schema["properties"]) == route.fields
    assert len({operation["operationId"] for operation in operations.values()}) == len(operations)


def test_guarded_fields_say_which_role_they_need(port: Port) -> None:
    _, document = port.ask("GET", "/admin/v1/openapi.json")
    change = document["paths"]["/admin/v1/tenants/{tenant}"]["patch"]["requestBody"]
    fields = change["content"]["application/json"]["schema"]["properties"]
    assert fields["budgets"] == {"x-headrace-role": Role.ADMIN.word}
    assert fields["weight"] == {}
