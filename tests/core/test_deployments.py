"""What a deployment is: every default is possible, and a revision's digest tells what answers differently, and nothing else."""

from typing import Any

import msgspec
import pytest

from headrace.core.deployment_terms import BudgetTerms, Gate, RolloutTerms
from headrace.core.deployments import (
    AppliedVersion,
    Artifact,
    DeploymentSpec,
    EngineArgs,
    EngineKind,
    Identity,
    Revision,
)
from headrace.core.fleet import Task

SPEC = DeploymentSpec(Identity("chat-small", EngineKind.EMBEDDED))
WEIGHTS = Artifact("hf://org/model@0123/model.gguf", rev="0123", sha256="ab" * 32, size_bytes=1000)
REVISION = Revision(Task.CHAT, EngineKind.EMBEDDED, runtime="xllamacpp 1.0", weights=WEIGHTS)


def test_a_spec_is_the_same_after_it_was_stored() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SPEC), type=DeploymentSpec) == SPEC
    assert SPEC.name == "chat-small"


def test_defaults_are_what_a_file_may_say() -> None:
    """The ranges of the annotations hold for the defaults too."""
    assert msgspec.convert(msgspec.to_builtins(SPEC), DeploymentSpec) == SPEC


@pytest.mark.parametrize("name", ["", "Chat", "a/b", "a@v1", "-a", "a" * 64, "a\n"])
def test_a_name_that_is_no_directory_is_none(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"deployment": {"name": name, "engine": "scripted"}}, DeploymentSpec)


@pytest.mark.parametrize(
    "changes",
    [
        {"task": Task.EMBEDDINGS},
        {"engine": EngineKind.LLAMACPP},
        {"runtime": "xllamacpp 1.1"},
        {"image": "repo@sha256:00"},
        {"weights": msgspec.structs.replace(WEIGHTS, sha256="cd" * 32)},
        {"draft": WEIGHTS},
        {"tokenizer": WEIGHTS},
        {"template": WEIGHTS},
        {"args": EngineArgs(slots=2)},
        {"args": EngineArgs(prefix_cache=False)},
        {"urls": ("http://127.0.0.1:1",)},
    ],
)
def test_whatever_changes_answers_changes_the_digest(changes: dict[str, Any]) -> None:
    """REPORTS: a tokenizer alone changed outputs with identical weights."""
    assert msgspec.structs.replace(REVISION, **changes).digest != REVISION.digest


@pytest.mark.parametrize(
    "changes",
    [
        {"source": "mlflow:models:/chat@champion"},
        {"weights": msgspec.structs.replace(WEIGHTS, uri="s3://models/m.gguf", rev="", license="MIT")},
        {"args": EngineArgs(slots=None)},
    ],
)
def test_the_same_bytes_from_elsewhere_are_the_same_revision(changes: dict[str, Any]) -> None:
    assert msgspec.structs.replace(REVISION, **changes).digest == REVISION.digest


def test_what_cant_be_read_counts_as_its_place() -> None:
    opaque = Artifact("https://models.example/plan", rev="7")
    assert opaque.identity == "https://models.example/plan@7"


def test_a_version_is_named_by_its_number_and_an_implicit_one_isnt() -> None:
    applied = AppliedVersion("chat", 3, SPEC, REVISION, 0.0, "cli:root")
    assert applied.key == "chat@v3"
    assert msgspec.structs.replace(applied, version=0).key == "chat"


def test_gates_of_ones_own_take_the_place_of_the_defaults() -> None:
    own = (Gate("quality:acceptance", min_delta=-0.01),)
    assert [gate.metric for gate in RolloutTerms().gates] == ["failure_rate", "ttft_p95"]
    assert RolloutTerms(gate=own).gates == own


def test_amounts_of_a_budget_are_exact_decimals() -> None:
    terms = BudgetTerms(replica_hour="0.1", per_day="5")
    assert (terms.replica_hour_pico, terms.per_day_pico) == (10**11, 5 * 10**12)
