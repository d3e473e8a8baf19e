"""Do the bounds that a contract states, and the checks of a request, draw the same lines?"""

import json
from dataclasses import replace

import pytest

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Deployment
from headrace.core.request import Endpoint
from headrace.protocols import bounds, openai
from headrace.protocols.bounds import Bound, Measure
from tests.support import measured

# Every number that a deployment may set, each as something that nobody would guess.
ODD = replace(
    measured.PLAIN,
    context_tokens=3001,
    vocabulary_tokens=4003,
    choices_max=3,
    constraint_pieces_max=607,
)
NARROW = replace(ODD, takes_media=False, takes_token_ids=False, choices_max=1)


def is_taken(endpoint: Endpoint, deployment: Deployment, body: measured.Body) -> bool:
    try:
        openai.check_against(deployment, openai.parse_body(endpoint, json.dumps(body).encode()))
    except InvalidRequest:
        return False
    return True


@pytest.mark.parametrize("deployment", [measured.PLAIN, ODD, NARROW], ids=["plain", "odd", "narrow"])
@pytest.mark.parametrize("endpoint", Endpoint, ids=measured.name)
def test_every_stated_bound_is_exactly_where_the_check_is(endpoint: Endpoint, deployment: Deployment) -> None:
    for bound in bounds.of(endpoint, deployment, body_bytes_max=1):
        if measured.is_of_body(bound):
            for inside, outside in measured.edges(bound):
                assert is_taken(endpoint, deployment, measured.body_of(endpoint, bound, inside)), (
                    bound,
                    inside,
                )
                if outside is not None:
                    beyond = measured.body_of(endpoint, bound, outside)
                    assert not is_taken(endpoint, deployment, beyond), (bound, outside)


def test_a_deployments_numbers_are_in_its_bounds() -> None:
    def most(field: str, measure: Measure) -> float | int | None:
        found = bounds.of(Endpoint.CHAT_COMPLETIONS, ODD, body_bytes_max=77)
        (bound,) = [each for each in found if (each.field, each.measure) == (field, measure)]
        return bound.at_most

    assert [most(name, Measure.VALUE) for name in bounds.OUTPUT_FIELDS] == [3001] * 3
    assert [most(name, Measure.VALUE) for name in bounds.CHOICE_FIELDS] == [3] * 3
    assert most("stop_token_ids[]", Measure.TOKEN_IDS) == 4002
    assert most("json_schema", Measure.PIECES) == 607
    assert most("body", Measure.BYTES) == 77


def test_a_model_that_takes_no_token_ids_states_no_bound_on_those_of_a_prompt() -> None:
    def places(deployment: Deployment) -> set[str]:
        return {bound.field for bound in bounds.of(Endpoint.COMPLETIONS, deployment, body_bytes_max=1)}

    assert places(ODD) - places(NARROW) == {"prompt[]"}


def test_no_two_bounds_of_an_endpoint_speak_of_the_same() -> None:
    for endpoint in Endpoint:
        found: list[Bound] = bounds.of(endpoint, ODD, body_bytes_max=1)
        assert len({(bound.field, bound.measure) for bound in found}) == len(found)
