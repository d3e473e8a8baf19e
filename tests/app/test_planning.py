"""A plan counts what else is on the machine, what the old version has, and what requests took so far."""

import errno
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from headrace.app import planning
from headrace.app.planning import Planner
from headrace.config import Config, EngineConfig
from headrace.config import deployments as files
from headrace.core.capacity import Bound, CapacityRecord, Hardware, Saturation
from headrace.core.clock import ManualClock
from headrace.core.deployments import target_key
from headrace.core.verdicts import Interval
from headrace.policies.cold_start import ColdStart
from headrace.policies.memory_plan import MIB, PROCESS_BYTES
from headrace.policies.planning import Machine, Plan, Start
from headrace.stores import sqlite
from headrace.stores.capacity import CapacityStore
from headrace.stores.database import DatabaseUnavailable
from headrace.stores.deployments import DeploymentStore, open_deployments
from headrace.stores.downloads import Silent
from headrace.stores.fleet import open_fleet
from headrace.stores.gguf_file import Value
from headrace.stores.ledger import Ledger
from headrace.stores.opening import open_local
from headrace.stores.registry import ModelStore
from headrace.telemetry import hardware
from tests.stores.test_ledger import usage_record
from tests.support.tiny_models import tiny_model, tiny_safetensors

NO_MODELS = Config(engine=EngineConfig(chat_model="", embedding_model=""))
KV_BYTES = 2 * 2 * 2 * 16 * 2  # of one token: keys and values, layers, heads that have some, numbers, bytes
HEADER: dict[str, Value] = {
    "llama.block_count": 2,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 128,
    "llama.context_length": 32_768,
}


class Desk:
    """A planner on a data directory of its own."""

    def __init__(self, folder: Path, machine: Machine, config: Config = NO_MODELS) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.data = folder / "data"
        self.data.mkdir()
        self.store: DeploymentStore = open_deployments(self.data, clock=self.clock, actor="cli:me")
        self.models = ModelStore(self.data / "models", clock=self.clock)
        self.planner = Planner(
            self.data, config, self.store, clock=self.clock, progress=Silent(), machine=machine
        )

    def model(self, *, license: str = "mit", name: str = "model.gguf") -> Path:
        path = self.folder / name
        path.write_bytes(tiny_model(self.folder, license=license, more=HEADER).content)
        return path

    def plan(self, *texts: str, templates: Mapping[str, str] | None = None) -> list[Plan]:
        return self.planner.plan([files.given(text, templates or {}, file="x.toml") for text in texts])

    def apply(self, *texts: str, templates: Mapping[str, str] | None = None) -> None:
        plans, applied = self.planner.apply(
            [files.given(text, templates or {}, file="x.toml") for text in texts]
        )
        assert applied, [plan.refusals for plan in plans]


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path, Machine(memory_bytes=1000 * MIB))
    yield made
    made.store.close()


def scripted(name: str = "demo", more: str = "", **args: object) -> str:
    given = ", ".join(f"{key} = {value}" for key, value in args.items())
    return f'[deployment]\nname = "{name}"\nengine = "scripted"\n[revision]\nargs = {{ {given} }}\n{more}'


def embedded(weights: Path, more: str = "", *, context_tokens: int = 1024) -> str:
    return (
        f'[deployment]\nname = "chat"\nengine = "embedded"\n[revision]\nweights = {{ uri = "{weights}" }}\n'
        f"args = {{ slots = 2, context_tokens = {context_tokens} }}\n{more}"
    )


# Capacity


def test_what_was_measured_of_a_revision_says_more_than_its_script(desk: Desk) -> None:
    (before,) = desk.plan(scripted(slots=4, ttft_ms=100, tokens=0))
    assert (before.capacity.basis, before.capacity.max_per_s) == ("as scripted", 40.0)
    found = Saturation(
        shape="64/32", bound=Bound.THROUGHPUT, concurrency=4, requests_per_s=Interval(20.0, 19.0, 21.0),
        output_tokens_per_s=Interval(0.0, None, None), service_s=0.2,
    )  # fmt: skip
    record = CapacityRecord(
        model="demo", digest=before.digest, runtime="scripted", slots=4, levels=(), saturation=(found,),
        hardware=Hardware(cpu="c", cores=2, memory_bytes=1), measured_s=1.0, took_s=1.0,
    )  # fmt: skip
    store = CapacityStore(open_local(desk.data))
    store.add(msgspec.structs.replace(record, digest="sha256:other"))
    assert desk.plan(scripted(slots=4, ttft_ms=100, tokens=0))[0].capacity == before.capacity
    store.add(record)
    store.close()
    (after,) = desk.plan(scripted(slots=4, ttft_ms=100, tokens=0))
    assert (after.capacity.basis, after.capacity.max_per_s) == ("measured, record 2: 64/32", 20.0)


# Memory


def test_the_memory_of_what_runs_is_known_by_its_name(desk: Desk) -> None:
    assert desk.planner.memory("chat") is None
    desk.apply(embedded(desk.model()))
    memory = desk.planner.memory("chat")
    assert memory is not None
    assert memory.kv_bytes == KV_BYTES * 2 * 1024


def test_memory_is_planned_from_the_header_of_the_weights(desk: Desk) -> None:
    (plan,) = desk.plan(embedded(desk.model()))
    assert plan.memory is not None
    assert plan.memory.kv_bytes == KV_BYTES * 2 * 1024
    assert plan.memory.weights_bytes == desk.model().stat().st_size


def test_what_else_is_applied_or_planned_beside_it_is_counted(desk: Desk) -> None:
    desk.apply(scripted("one", "[scale]\nmin = 2\nmax = 4"))
    (plan, _) = desk.plan(scripted("two"), scripted("three"))
    assert plan.fit is not None
    assert plan.fit.least_bytes == (2 + 1 + 1) * PROCESS_BYTES
    assert plan.fit.most_bytes == (4 + 1 + 1) * PROCESS_BYTES


def test_a_deployment_that_is_planned_anew_counts_as_it_will_be(desk: Desk) -> None:
    desk.apply(scripted("one", "[scale]\nmin = 9\nmax = 9"), scripted("two"))
    (_, plan) = desk.plan(scripted("one"), scripted("two", slots=2))
    assert plan.fit is not None
    assert plan.fit.least_bytes == 2 * PROCESS_BYTES


def test_a_change_that_does_not_fit_beside_the_old_version_is_refused_or_recreates(tmp_path: Path) -> None:
    """T56, ray#63016: the old version is never ended for the new one, unless the file says so."""
    desk = Desk(tmp_path, Machine(memory_bytes=round(1.5 * PROCESS_BYTES / 0.9)))
    desk.apply(scripted())
    (refused,) = desk.plan(scripted(slots=2))
    assert "do not fit together: 132 MiB of 99 MiB" in refused.refusals[0]
    (accepted,) = desk.plan(scripted(slots=2, more='[rollout]\nstrategy = "recreate"'))
    assert accepted.refusals == ()
    assert "serves nobody between" in accepted.warnings[0]
    desk.store.close()


def test_models_of_headrace_toml_are_counted_until_a_deployment_takes_their_name(tmp_path: Path) -> None:
    config = Config(engine=EngineConfig(chat_model="chat", embedding_model="", slots=2, context_tokens=1024))
    desk = Desk(tmp_path, Machine(memory_bytes=1000 * MIB), config)
    weights = desk.model()
    desk.models.pull(str(weights), progress=Silent(), rename="chat")
    (alone,) = desk.plan(embedded(weights))
    (beside,) = desk.plan(scripted())
    assert alone.memory is not None
    assert beside.memory is not None
    assert alone.fit is not None
    assert beside.fit is not None
    assert alone.fit.least_bytes == alone.memory.replica_bytes
    assert beside.fit.least_bytes == alone.memory.replica_bytes + beside.memory.replica_bytes
    desk.store.close()


def test_what_cant_be_read_is_told_as_a_lower_bound(desk: Desk) -> None:
    weights = desk.folder / "weights.bin"
    weights.write_bytes(b"opaque")
    (plan,) = desk.plan(embedded(weights, '[revision.license]\nid = "mit"'))
    assert plan.memory is not None
    assert plan.memory.kv_bytes is None
    assert any("lower bound" in warning for warning in plan.warnings)


# Licenses


def test_a_license_that_nobody_accepted_is_refused_and_one_that_was_accepted_is_not(desk: Desk) -> None:
    """E1: a model's terms are read before it is offered, not after."""
    weights = desk.model(license="llama3.2")
    (refused,) = desk.plan(embedded(weights))
    assert "must be accepted by name" in refused.refusals[0]
    (allowed,) = desk.plan(embedded(weights, '[revision.license]\nallow = ["llama3.2"]'))
    assert allowed.refusals == ()
    (contradicted,) = desk.plan(embedded(weights, '[revision.license]\nid = "mit"'))
    assert "the source says llama3.2" in contradicted.refusals[0]
    desk.models.pull(str(weights), progress=Silent(), accept_license="llama3.2")
    (accepted,) = desk.plan(embedded(weights))
    assert accepted.refusals == ()


# What was resolved


def test_weights_that_are_not_what_they_should_be_are_refused(desk: Desk) -> None:
    weights = desk.model()
    text = embedded(weights).replace(f'"{weights}"', f'"{weights}", sha256 = "{"0" * 64}"')
    (plan,) = desk.plan(text)
    assert plan.revision is None
    assert plan.refusals[0].startswith("`revision.weights`: ")
    assert "0" * 64 in plan.refusals[0]


def test_a_folder_where_the_engine_reads_one_file_is_refused(desk: Desk) -> None:
    folder = desk.folder / "model"
    folder.mkdir()
    for name in ("a.safetensors", "b.safetensors"):
        (folder / name).write_bytes(tiny_safetensors())
    (plan,) = desk.plan(embedded(folder, '[revision.license]\nid = "mit"').replace(str(folder), f"{folder}/"))
    assert any("reads one GGUF file" in refusal for refusal in plan.refusals), plan.refusals


def test_a_compiled_plan_is_refused_where_another_engine_would_run_it(desk: Desk) -> None:
    weights = desk.model()
    text = embedded(weights).replace(f'"{weights}"', f'"{weights}", built_for = "tensorrt-llm==1.2.0"')
    (plan,) = desk.plan(text)
    assert any("built for tensorrt-llm==1.2.0, and xllamacpp" in refusal for refusal in plan.refusals)


def test_a_name_that_is_known_nowhere_is_refused_with_the_nearest(desk: Desk) -> None:
    text = embedded(Path("smollm2-135m-instruc"))
    (plan,) = desk.plan(text)
    assert "did you mean smollm2-135m-instruct " in plan.refusals[0]


@pytest.mark.parametrize(
    ("package", "told"),
    [
        ("xllamacpp==0.0.1", "is installed; pip install xllamacpp==0.0.1, or pin"),
        ("llama-cpp-python==0.0.1", "the engine 'embedded' is xllamacpp, got llama-cpp-python"),
    ],
)
def test_a_runtime_is_the_one_that_is_really_installed(desk: Desk, package: str, told: str) -> None:
    (plan,) = desk.plan(embedded(desk.model(), f'[revision.runtime]\npackage = "{package}"'))
    assert told in plan.refusals[0]


def test_a_template_is_kept_with_its_version_and_checked(desk: Desk) -> None:
    """mteb#5377: a template or tokenizer alone changes answers with identical weights."""
    weights, name = desk.model(), "[revision.template]\nfile = 'chat.jinja'\n"
    desk.apply(embedded(weights, name), templates={"chat.jinja": "{{ one }}"})
    first = desk.store.version("chat", 1)
    desk.apply(embedded(weights, name), templates={"chat.jinja": "{{ two }}"})
    second = desk.store.version("chat", 2)
    assert first.revision.digest != second.revision.digest
    assert first.revision.template is not None
    kept = desk.models.artifacts.path(first.revision.template)
    assert kept is not None
    assert kept.read_text() == "{{ one }}"
    shutil.rmtree(desk.data / "models")  # a directory that came back from a backup has no models
    desk.planner.rollback("chat", 1)
    assert kept.read_text() == "{{ one }}"
    (plan,) = desk.plan(
        embedded(weights, f"{name}sha256 = '{'0' * 64}'"), templates={"chat.jinja": "{{ two }}"}
    )
    assert "SHA-256 of chat.jinja is " in plan.refusals[0]


# Gates


def test_several_files_are_applied_together_or_not_at_all(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: also where the disk is full in the middle of it."""
    desk.apply(scripted("one"), scripted("two"))
    wish, begun = DeploymentStore._wish, []

    def full_at_the_second(self: DeploymentStore, name: str, *more: object, **named: object) -> None:
        begun.append(name)
        if len(begun) > 1:
            raise DatabaseUnavailable("disk is full")
        wish(self, name, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(DeploymentStore, "_wish", full_at_the_second)
    with pytest.raises(DatabaseUnavailable):
        desk.apply(scripted("one", answer='"other"'), scripted("two", answer='"other"'))
    assert begun == ["one", "two"]
    assert {name: version.version for name, version in desk.store.wanted().items()} == {"one": 1, "two": 1}


def test_a_lock_that_cant_be_written_is_no_lock_and_is_written_by_the_next_apply(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database counts: what is applied is applied, and no file says that another version was."""

    def full(path: Path, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    desk.apply(scripted("one"))
    with monkeypatch.context() as patched:
        patched.setattr(planning, "write_whole", full)
        desk.apply(scripted("one", answer='"other"'))
    assert desk.store.wanted()["one"].version == 2
    assert not desk.planner.lock_path("one").exists()
    desk.apply(scripted("one", answer='"other"'))
    assert b'"version": 2' in desk.planner.lock_path("one").read_bytes()


def quality(named: str, min_delta: float) -> str:
    return scripted(more=f'[[rollout.gate]]\nmetric = "quality:{named}"\nmin_delta = {min_delta}\n')


def test_a_gate_without_its_acceptance_set_is_refused(desk: Desk) -> None:
    """A3: the gate of a rollout is met on cases that nobody tuned on, or not at all."""
    (plan,) = desk.plan(quality("document-asistant", -0.1))
    assert "`rollout.gate[0].metric`: no set of cases 'document-asistant' (acceptance)" in plan.refusals[0]


def test_a_gate_that_too_few_cases_could_ever_meet_is_a_warning(desk: Desk) -> None:
    (plan,) = desk.plan(quality("document-assistant", -0.01))
    assert plan.refusals == ()
    assert "can't be shown with the 70 cases of document-assistant" in plan.warnings[-1]
    (enough,) = desk.plan(quality("document-assistant", -0.2))
    assert enough.warnings == ()


# Capacity and cold starts


def test_capacity_is_what_requests_of_the_revision_took(desk: Desk) -> None:
    text = embedded(desk.model(), "[scale]\nmin = 2\nmax = 2")
    desk.apply(text)
    digest = desk.store.version("chat", 1).revision.digest
    ledger = Ledger(desk.data / sqlite.DATABASE_NAME, clock=desk.clock, on_failure=print)
    ledger.start()
    for number in range(20):
        is_new = number < 10
        record = usage_record(
            f"req_{number}",
            model="chat",
            revision=digest if is_new else "old",
            queue_wait_s=1.0,
            total_s=3.0 if is_new else 5.0,
        )
        ledger.append(record, [])
    ledger.stop()
    (plan,) = desk.plan(text.replace("max = 2", "max = 4"))
    assert plan.capacity.basis == "mean of the last 10 requests of this revision"
    assert (plan.capacity.service_s, plan.capacity.min_per_s, plan.capacity.max_per_s) == (2.0, 2.0, 4.0)
    (other,) = desk.plan(text.replace("slots = 2", "slots = 3"))
    assert other.capacity.basis == "mean of the last 20 requests, of earlier revisions"
    assert other.capacity.service_s == 3.0


def test_a_cold_start_that_misses_the_promise_is_a_warning(desk: Desk) -> None:
    """E5: scale to zero only where the latency of the first request allows it."""
    text = scripted(more="[slo]\nttft_p95_ms = 1000\n[scale]\nmin = 0\nidle_to_zero_s = 60\n")
    (unknown,) = desk.plan(text)
    assert "a cold start, not measured yet," in unknown.warnings[0]
    fleet = open_fleet(desk.data, clock=desk.clock)
    fleet.take_lease("test")
    fleet.note_start(
        ColdStart("demo", unknown.digest, hardware.in_words(), {"launch": 0.5, "load": 1.0}, 1.0)
    )
    fleet.close()
    (measured,) = desk.plan(text)
    assert "1.5 s of cold start" in measured.warnings[0]
    assert measured.start == Start(1.5, {"launch": 0.5, "load": 1.0}, 1)
    (other,) = desk.plan(scripted(slots=2))
    assert other.start == Start(1.5, {"launch": 0.5, "load": 1.0}, 1, is_like=True)


def test_a_target_of_a_version_is_named_as_in_snapshots(desk: Desk) -> None:
    desk.apply(scripted())
    assert desk.store.wanted()["demo"].key == target_key("demo", 1) == "demo@v1"
