"""D7: a good service is certified, and each of ten planted defects fails the step that is there for it."""

import asyncio
import dataclasses
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli.main import main
from headrace.config import deployments
from headrace.config.deployments import DeploymentFile
from headrace.core.clock import SystemClock
from headrace.core.deployment_terms import SloTerms
from headrace.core.verdicts import Verdict
from headrace.engines import fetch
from headrace.evidence import certified, certify, certify_subject, requests, service_card, service_card_text
from headrace.evidence.certify import QUICK, Size, Terms
from headrace.evidence.certify_caller import Address, Caller
from headrace.evidence.certify_steps import STEPS
from headrace.evidence.certify_subject import Subject, as_toml
from headrace.evidence.service_card import ServiceCard
from headrace.policies import certification
from headrace.policies.certification import Bounds, StepReport
from headrace.policies.quality import SetKind
from headrace.stores import card_key
from tests.evidence import rig
from tests.support.defective_headrace import DEFECTS, VARIABLE
from tests.support.scripted import ScriptedEngine, scripted_engine

DEFECTIVE = (sys.executable, "-m", "tests.support.defective_headrace")
RATE_PER_S = 20.0
# A machine that does other things too is slow; what a defect does is slower still, or another thing altogether.
PATIENT = Bounds(
    ttft_s=20.0, tpot_s=5.0, cancel_s=1.5, refusal_s=20.0, goodput_share=0.2, revoked_s=20.0,
    unanswered_s=30.0, recovery_s=90.0, quality_floor=0.8, memory_bytes_per_request=16_384.0, leak_p=0.01, failure_share=0.1,
)  # fmt: skip
CLOCK = SystemClock()
Made = tuple[ServiceCard, dict[str, StepReport]]
GOOD = dataclasses.replace(QUICK, load_s=3.0, trials=2, samples=110)
TINY = Size(trials=1, pairs=6, samples=60, load_s=3.0, blocks=8, block_requests=12, is_short=True)
ARGS: dict[str, Any] = {
    "slots": 4,
    "ttft_ms": 20,
    "itl_ms": 8,
    "tokens": 600,
    "prefix_cache": True,
    "prefill_tokens_per_s": 10_000,
}
# What would show that it is bad is told, and decides nothing.
BLIND = {
    "gate": [{"metric": "failure_rate", "max": 1.0, "dry_run": True}],
    "inconclusive": "promote",
}


@dataclass(frozen=True)
class Planted:
    """A defect, and the step that must find it.

    Attributes:
        says: Part of the reason.
        program: The defect of the service's own code, by its name in defective_headrace.
        faults: Of the engine.
        rollout: Of the deployment file.
        is_wrong: The cases are asked of a model that has one answer to everything.
    """

    step: str
    says: str
    program: str = ""
    faults: str = ""
    rollout: dict[str, Any] = field(default_factory=dict)
    is_wrong: bool = False
    bounds: Bounds = PATIENT


# In this order: the books are compared before anything else has gone wrong, and what is spoilt comes last.
PLANTED = {
    "double bill": Planted("reconciliation", "records of requests that nobody sent", program="double_bill"),
    "leaks: a cache that tenants share": Planted(
        "isolation", "part of another tenant's prompt that comes from a cache", program="shared_cache"
    ),
    "leaks: answers kept for another tenant": Planted(
        "isolation", "things of another tenant that were seen: ", program="shared_answers"
    ),
    "cold cache": Planted("cache", "part of a repeated prompt that comes from the cache: 0", program="cold_cache"),
    "memory growth": Planted("memory", "growth of the service's processes", program="memory_growth"),
    "no Retry-After": Planted("overload", "refused without Retry-After", program="no_retry_after"),
    "wrong answers": Planted("quality", "answered rightly", is_wrong=True),
    "slow": Planted(
        "normal-load", "ttft 300 ms, kept for: 0", faults="ttft:600",
        bounds=msgspec.structs.replace(PATIENT, ttft_s=0.3),
    ),
    "failing": Planted("normal-load", "failures, kept for", faults="error:500@1/3"),
    "no cancel": Planted(
        "cancel", "answers that their engine went on with: 3", faults="deaf",
        bounds=msgspec.structs.replace(PATIENT, cancel_s=1.0),
    ),
    "no rollback": Planted(
        "bad-release", "rolled back after: never", rollout=BLIND,
        bounds=msgspec.structs.replace(PATIENT, recovery_s=5.0),
    ),
}  # fmt: skip


def deployment(folder: Path, *, replicas: int = 1, **sections: Any) -> DeploymentFile:
    """A scripted service that answers the cases as it should."""
    file = folder / f"chat-{len(sections)}.toml"
    file.write_text(
        as_toml(
            {
                "api": "v1",
                "deployment": {"name": "chat", "engine": "scripted"},
                "revision": {"args": {**ARGS, "answers": rig.table(SetKind.ACCEPTANCE)}},
                "scale": {"min": replicas, "max": replicas},
                "budget": {"currency": "EUR", "replica_hour": "0.36"},
                **sections,
            }
        )
    )
    return deployments.load(file)


def terms(folder: Path, *, bounds: Bounds = PATIENT, size: Size) -> Terms:
    return Terms(
        slo=certification.default_slo("chat", SloTerms(), bounds),
        workload=requests.load(requests.SMALL),
        bounds=bounds,
        size=size,
        rate_per_s=RATE_PER_S,
        data=folder / "data",
        actor="test",
    )


class Plants:
    """Puts defects into a service that runs, one after the other."""

    def __init__(self, folder: Path, switch: Path, subject: Subject, wrong: ScriptedEngine) -> None:
        self._folder, self._switch, self._subject, self._wrong = folder, switch, subject, wrong

    async def found(self, planted: Planted, *steps: str, size: Size = TINY) -> Sequence[StepReport]:
        """These steps, or the one that is there for it, made while it is there."""
        self._set(planted.program)
        await self._fault(planted.faults)
        subject = self._subject
        if planted.rollout:
            subject = dataclasses.replace(subject, file=deployment(self._folder, rollout=planted.rollout))
        if planted.is_wrong:
            subject = dataclasses.replace(subject, judge=self._elsewhere())
        made = terms(self._folder, bounds=planted.bounds, size=size)
        reports = await certify.run(
            subject, [STEPS[name] for name in steps or (planted.step,)], made, known={}
        )
        self._set("")
        await self._fault("")
        return reports

    def _set(self, name: str) -> None:
        other = self._switch.with_suffix(".new")
        other.write_text(name)
        other.replace(self._switch)

    async def _fault(self, script: str) -> None:
        for folder in (self._subject.here.running.data / "run" / "replicas").iterdir():
            port = json.loads((folder / "state.json").read_bytes())["port"]
            said = await fetch.fetch(
                "127.0.0.1", port, "POST", "/scripted/faults", body=script.encode(), timeout_s=30.0, body_bytes_max=4096
            )  # fmt: skip
            assert said.status == 200

    def _elsewhere(self) -> Caller:
        address = Address("127.0.0.1", self._wrong.port)
        return Caller(address, model="scripted", key="", tenant="", clock=self._subject.clock, history=[])


@asynccontextmanager
async def service(folder: Path) -> AsyncIterator[Plants]:
    """One that takes defects."""
    switch = folder / "defect"
    switch.touch()
    environment = {VARIABLE: str(switch), "PYTHONPATH": ":".join(filter(None, sys.path))}
    with scripted_engine() as wrong:
        async with certify_subject.deployed(
            deployment(folder), clock=CLOCK, models=None, program=DEFECTIVE, environment=environment
        ) as subject:
            yield Plants(folder, switch, subject, wrong)


async def certify_good(folder: Path) -> ServiceCard:
    return await certified.of_file(
        deployment(folder, replicas=2),
        list(STEPS.values()),
        terms(folder, size=GOOD),
        key=card_key.load(folder / "data"),
        clock=CLOCK,
        models=None,
        repeat="a test",
    )


async def find_all(folder: Path) -> dict[str, StepReport]:
    async with service(folder) as plants:
        return {name: (await plants.found(each))[0] for name, each in PLANTED.items()}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The card of a good service, and what one that has all defects in turn is found to have; both at once, as most is waiting."""

    async def both() -> Made:
        return await asyncio.gather(
            certify_good(tmp_path_factory.mktemp("good")), find_all(tmp_path_factory.mktemp("planted"))
        )

    return asyncio.run(both())


@pytest.fixture(scope="module")
def good(made: Made) -> ServiceCard:
    return made[0]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_fails_the_step_that_is_there_for_it(made: Made, name: str) -> None:
    step, planted = made[1][name], PLANTED[name]
    assert (step.name, step.verdict) == (planted.step, Verdict.FAIL), msgspec.json.encode(step).decode()
    assert planted.says in step.detail
    assert certification.overall([step]) is Verdict.FAIL


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", PLANTED)
def test_a_service_with_a_defect_is_not_certified(name: str, tmp_path: Path) -> None:
    """The whole path, with the defect there from the first step to the last."""

    async def certified_with() -> Sequence[StepReport]:
        async with service(tmp_path) as plants:
            return await plants.found(PLANTED[name], *STEPS, size=GOOD)

    reports = asyncio.run(certified_with())
    assert PLANTED[name].step in [each.name for each in reports if each.verdict is Verdict.FAIL]


def test_every_defect_of_the_service_is_planted() -> None:
    assert {planted.program for planted in PLANTED.values() if planted.program} == set(DEFECTS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_good_service_passes_every_step(good: ServiceCard) -> None:
    assert [(step.name, step.verdict, step.detail) for step in good.steps] == [
        (name, Verdict.PASS, "") for name in STEPS
    ]
    assert good.verdict is Verdict.PASS
    assert not good.is_complete  # the short form certifies nothing
    assert good.supported["requests_per_s"] == 20.0
    assert good.quality["share"] == 1.0
    assert good.cost is not None
    assert (good.cost.per_hour, good.cost.currency) == ("0.72", "EUR")
    assert good.stack["revision"].startswith("sha256:")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_card_is_signed_and_a_change_is_seen(
    good: ServiceCard, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.json"
    file.write_bytes(service_card.as_json(good))
    verify = ["certify", "verify", str(file), "--data", str(tmp_path)]
    assert main([*verify, "--public-key", good.signature.key]) == 0
    assert "genuine" in capsys.readouterr().out
    assert main(verify) == 1  # signed with another key than this directory's
    assert "another key" in capsys.readouterr().err
    card = json.loads(file.read_bytes())
    card["supported"]["requests_per_s"] = 2000.0
    file.write_text(json.dumps(card))
    assert main([*verify, "--public-key", good.signature.key]) == 1
    assert "NOT GENUINE" in capsys.readouterr().err
    page, text = service_card_text.html(good), service_card_text.markdown(good)
    for name in STEPS:
        assert name in page
        assert name in text


def test_the_command_lists_its_steps_and_names_what_to_change(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = ["--data", str(tmp_path)]
    assert main(["certify", "list", "--json"]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)] == list(STEPS)
    assert main(["certify", "list"]) == 0
    assert "cancel_s=1" in capsys.readouterr().out
    for arguments, says in (
        (["one.toml", "two.toml"], "one deployment file at a time"),
        (["one.toml", "--url", "http://127.0.0.1:1"], "it takes no deployment"),
        (["one.toml", "--deployment", "chat"], "not both"),
        (["--url", "http://127.0.0.1:1"], "--model"),
        ([], "headrace models pull"),
    ):
        assert main(["certify", *arguments, *data]) == 2
        assert says in capsys.readouterr().err
    (tmp_path / "models").mkdir()
    for arguments, says in (
        (["--only", "overlod"], "did you mean `overload`"),
        (["--bound", "cancel_s"], "NAME=VALUE"),
        (["--bound", "nonsense=1"], "no bound 'nonsense'"),
        (["verify", str(tmp_path / "models.json")], ""),
    ):
        (tmp_path / "models.json").write_text("{}")
        assert main(["certify", *arguments, *data]) == 2
        assert says in capsys.readouterr().err


@pytest.mark.slow
def test_a_service_that_others_run_is_certified_as_far_as_it_can_be_asked(tmp_path: Path) -> None:
    """From outside: the contract of any OpenAI-compatible server, and the rest is listed as not made."""
    with scripted_engine(tokens=600, slots=8) as engine:
        out = tmp_path / "out"
        asked = ["--url", engine.url, "--model", "scripted", "--only", "contract", "--only", "isolation"]
        status = main(["certify", *asked, "--quick", "--card", str(out), "--data", str(tmp_path)])
    card = json.loads((out / "service-card.json").read_bytes())
    contract, isolation = card["steps"]
    assert isolation["verdict"] is None
    assert "not a URL" in isolation["detail"]
    assert contract["verdict"] == "fail"  # it asks nobody for a key, which is a promise
    assert any("without a key" in note for note in contract["notes"])
    assert status == 1
