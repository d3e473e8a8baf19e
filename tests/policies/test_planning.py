"""A plan says what would change, what it takes and costs, and refuses with what to change."""

from typing import Any

import msgspec
import pytest

from headrace.core.deployment_terms import (
    BudgetTerms,
    LifecycleTerms,
    RolloutTerms,
    ScaleTerms,
    ShapeTerms,
    SloTerms,
)
from headrace.core.deployments import (
    AppliedVersion,
    Artifact,
    DeploymentSpec,
    EngineArgs,
    EngineKind,
    Identity,
    Revision,
    RevisionTerms,
)
from headrace.core.fleet import Task
from headrace.policies import planning
from headrace.policies.memory_plan import MIB, Architecture, Fit, MemoryPlan
from headrace.policies.planning import Change, Machine, Plan

REVISION = Revision(
    Task.CHAT,
    EngineKind.EMBEDDED,
    runtime="xllamacpp 1",
    weights=Artifact("m", sha256="ab" * 32),
    args=EngineArgs(slots=4),
)
HERE = Machine(memory_bytes=1000 * MIB)


def spec(**sections: Any) -> DeploymentSpec:
    return DeploymentSpec(Identity("chat", EngineKind.EMBEDDED), **sections)


def applied(spec: DeploymentSpec, revision: Revision = REVISION) -> AppliedVersion:
    return AppliedVersion("chat", 2, spec, revision, 0.0, "cli:me")


# What changes


def test_a_new_deployment_is_told_by_what_is_no_default() -> None:
    changes = planning.differences(None, spec(scale=ScaleTerms(max=2)), REVISION)
    assert {change.key: change.new for change in changes} == {
        "deployment.name": "chat",
        "deployment.engine": "embedded",
        "deployment.task": "chat",
        "scale.max": 2,
        "resolved.weights": "ab" * 32,
        "resolved.runtime": "xllamacpp 1",
        "resolved.args.slots": 4,
        "resolved.digest": REVISION.digest,
    }
    assert all(change.old is None for change in changes)


def test_a_change_is_told_as_the_keys_that_differ() -> None:
    old = spec(scale=ScaleTerms(max=2), revision=RevisionTerms(args=EngineArgs(slots=4)))
    newer = msgspec.structs.replace(REVISION, runtime="xllamacpp 2")
    assert planning.differences(applied(old), spec(), newer) == (
        Change("scale.max", 2, 1),
        Change("resolved.runtime", "xllamacpp 1", "xllamacpp 2"),
        Change("resolved.digest", REVISION.digest, newer.digest),
        Change("revision.args.slots", 4, None),
    )


def test_equal_versions_have_no_differences() -> None:
    assert planning.differences(applied(spec()), spec(), REVISION) == ()


def test_what_could_not_be_resolved_is_no_change() -> None:
    assert planning.differences(applied(spec()), spec(), None) == ()
    assert all(not change.key.startswith("resolved.") for change in planning.differences(None, spec(), None))


# What it takes and costs


def test_capacity_follows_from_slots_and_the_time_that_each_is_held() -> None:
    """Little's law."""
    found = planning.capacity(spec(scale=ScaleTerms(min=1, max=3)), slots=4, service_s=2.0, basis="measured")
    assert (found.min_per_s, found.max_per_s, found.basis) == (2.0, 6.0, "measured")
    unknown = planning.capacity(spec(), slots=4, service_s=None)
    assert (unknown.min_per_s, unknown.basis) == (None, "not measured yet")


def test_what_replicas_cost_in_a_day_is_an_exact_decimal() -> None:
    budget = BudgetTerms(currency="EUR", replica_hour="0.1", per_day="5")
    found = planning.cost(spec(scale=ScaleTerms(min=1, max=3), budget=budget))
    assert (found.min_per_day, found.max_per_day, found.per_day) == ("2.40", "7.20", "5.00")
    assert planning.cost(spec()).per_day == ""


# Refusals


@pytest.mark.parametrize(
    ("sections", "machine", "told"),
    [
        ({"shape": ShapeTerms(kind="multinode")}, HERE, "`shape.kind` = 'multinode' is not offered yet"),
        ({"shape": ShapeTerms(backend="k8s")}, HERE, "`shape.backend` = 'k8s' is not offered yet"),
        ({"shape": ShapeTerms(gpus=2)}, Machine(1, 1), "needs 2 GPUs, and this machine has 1"),
        ({"revision": RevisionTerms(args=EngineArgs(tensor_parallel=2))}, HERE, "over 2 devices, and `shape.gpus` is 0"),
        ({"shape": ShapeTerms(kind="tp", gpus=1)}, Machine(1, 8), "needs `shape.gpus` of at least 2"),
    ],
)  # fmt: skip
def test_what_has_no_place_here_is_refused(sections: dict[str, Any], machine: Machine, told: str) -> None:
    (refusal,) = planning.refuse_place(spec(**sections), machine)
    assert told in refusal


def test_what_has_a_place_is_not_refused() -> None:
    assert list(planning.refuse_place(spec(), HERE)) == []
    two = spec(
        shape=ShapeTerms(kind="tp", gpus=2), revision=RevisionTerms(args=EngineArgs(tensor_parallel=2))
    )
    assert list(planning.refuse_place(two, Machine(1, 2))) == []


@pytest.mark.parametrize(
    ("lifecycle", "is_refused"),
    [
        (LifecycleTerms(drain_s=59.0), True),
        (LifecycleTerms(drain_s=60.0), False),
        (LifecycleTerms(drain_s=1.0, may_cut_requests=True), False),
    ],
)
def test_a_drain_is_as_long_as_a_request_may_take_or_says_that_it_cuts(
    lifecycle: LifecycleTerms, is_refused: bool
) -> None:
    """T57."""
    found = list(planning.refuse_deadline(spec(lifecycle=lifecycle), deadline_max_s=60.0))
    assert bool(found) == is_refused


def test_a_context_beyond_the_training_is_refused() -> None:
    model = Architecture(1, 1, 1, 1, 1, 1, context_tokens_max=8192)
    assert list(planning.refuse_context(model, 8192)) == []
    assert list(planning.refuse_context(None, 1 << 20)) == []
    assert "trained for 8192" in next(planning.refuse_context(model, 8193))


SMALL, LARGE = MemoryPlan(kv_bytes=0, process_bytes=10 * MIB), MemoryPlan(kv_bytes=0, process_bytes=99 * MIB)


@pytest.mark.parametrize(
    ("sections", "memory", "fit", "told"),
    [
        ({"shape": ShapeTerms(memory_mib=50)}, LARGE, Fit(1000, 1, 1, 1), "needs 99 MiB, and `shape.memory_mib` allows 50"),
        ({"shape": ShapeTerms(memory_mib=50)}, SMALL, Fit(1000, 1, 1, 1), ""),
        ({}, SMALL, Fit(10 * MIB, 11 * MIB, 12 * MIB, 12 * MIB), "does not fit: 11 MiB"),
        ({}, SMALL, Fit(10 * MIB, 9 * MIB, 12 * MIB, 12 * MIB), "do not fit together: 12 MiB of 10 MiB"),
        ({"rollout": RolloutTerms(strategy="recreate")}, SMALL, Fit(10 * MIB, 9 * MIB, 12 * MIB, 12 * MIB), ""),
        ({}, SMALL, Fit(10 * MIB, 9 * MIB, 10 * MIB, 99 * MIB), ""),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_the_numbers(
    sections: dict[str, Any], memory: MemoryPlan, fit: Fit, told: str
) -> None:
    """kserve#5983, ray#63016: a rollout never takes from the old version before the new one is there."""
    found = list(planning.refuse_memory(spec(**sections), memory, fit, is_replacing=True))
    assert bool(found) == bool(told)
    assert all(told in refusal for refusal in found)


@pytest.mark.parametrize(
    ("stated", "found", "allow", "accepted", "told"),
    [
        ("", "apache-2.0", (), "", ""),
        ("mit", "MIT License", (), "", ""),
        ("mit", "", (), "", ""),
        ("", "", (), "", "nothing says what the license"),
        ("mit", "apache-2.0", (), "", "the source says Apache-2.0"),
        ("", "llama3.2", (), "", "must be accepted by name"),
        ("", "llama3.2", (), "Llama3.2", ""),
        ("", "llama3.2", ("llama3.2", "mit"), "", ""),
        ("", "apache-2.0", ("mit",), "", "`revision.license.allow` has mit"),
        ("", "MIT OR GPL-3.0", ("mit",), "", ""),
        ("", "MIT AND GPL-3.0", ("mit",), "", "`revision.license.allow` has mit"),
    ],
)
def test_a_license_is_one_that_is_allowed_or_that_somebody_accepted(
    stated: str, found: str, allow: tuple[str, ...], accepted: str, told: str
) -> None:
    refusals = list(planning.refuse_license(stated, found, allow, accepted=accepted))
    assert bool(refusals) == bool(told)
    assert all(told in refusal for refusal in refusals)


# Warnings


@pytest.mark.parametrize(
    ("sections", "fit", "memory", "cold_start_s", "told"),
    [
        ({}, None, None, None, ""),
        ({}, Fit(10, 1, 1, 1), SMALL, None, ""),
        ({}, Fit(10, 1, 1, 1), MemoryPlan(kv_bytes=None), None, "lower bound"),
        ({}, Fit(10 * MIB, 1, 1, 20 * MIB), SMALL, None, "at most replicas it would not fit: 20 MiB of 10 MiB"),
        ({"scale": ScaleTerms(min=0), "slo": SloTerms(ttft_p95_ms=500)}, None, None, None, "not measured yet"),
        ({"scale": ScaleTerms(min=0), "slo": SloTerms(ttft_p95_ms=500)}, None, None, 2.5, "waits for 2.5 s of cold start"),
        ({"scale": ScaleTerms(min=0), "slo": SloTerms(ttft_p95_ms=500)}, None, None, 0.4, ""),
        ({"scale": ScaleTerms(min=0)}, None, None, None, ""),
    ],
)  # fmt: skip
def test_what_may_be_applied_and_should_be_known_is_a_warning(
    sections: dict[str, Any],
    fit: Fit | None,
    memory: MemoryPlan | None,
    cold_start_s: float | None,
    told: str,
) -> None:
    """E5: to zero only where the latency of the first request allows it."""
    found = list(planning.warn(spec(**sections), fit, memory, cold_start_s=cold_start_s))
    assert bool(found) == bool(told)
    assert all(told in warning for warning in found)


# The whole


@pytest.mark.parametrize(("memory", "refusals"), [(SMALL, ()), (None, ("no",))])
def test_a_plan_is_the_same_after_it_was_sent(memory: MemoryPlan | None, refusals: tuple[str, ...]) -> None:
    plan = Plan(
        file="chat.toml",
        name="chat",
        action=planning.CREATE,
        version=1,
        replaces=0,
        digest=REVISION.digest,
        changes=planning.differences(None, spec(), REVISION),
        revision=REVISION,
        memory=memory,
        fit=None,
        capacity=planning.capacity(spec(), slots=4, service_s=1.0),
        cost=planning.cost(spec()),
        start=planning.Start(1.5, {"load": 1.5}, 3),
        warnings=(),
        refusals=refusals,
    )
    assert msgspec.json.decode(msgspec.json.encode(planning.facts(plan)), type=Plan) == plan
    assert plan.is_refused == bool(refusals)
    if memory is not None:
        assert planning.facts(plan)["memory"]["replica_bytes"] == memory.replica_bytes


def test_a_step_of_a_rollout_is_named_by_its_place() -> None:
    steps = RolloutTerms().steps
    other = (*steps[:2], msgspec.structs.replace(steps[2], weight=60.0))
    old = applied(spec(revision=RevisionTerms(urls=("http://a",))))
    new = spec(rollout=RolloutTerms(steps=other), revision=RevisionTerms(urls=("http://b",)))
    assert planning.differences(old, new, None) == (
        Change("revision.urls", ["http://a"], ["http://b"]),
        Change("rollout.steps[2].weight", 50.0, 60.0),
    )
