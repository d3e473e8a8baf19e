"""D7: a good service is certified, and each of ten planted defects fails the step that is there for it."""

import asyncio
import dataclasses
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace.cli.main import main
from headrace.config import deployments
from headrace.core.clock import SystemClock
from headrace.core.verdicts import Verdict
from headrace.evidence import certified, service_card, service_card_text
from headrace.evidence.certify import QUICK, Size, Terms
from headrace.evidence.certify_steps import STEPS
from headrace.evidence.certify_subject import as_toml
from headrace.evidence.drill_instance import HEADRACE
from headrace.evidence.service_card import ServiceCard
from headrace.policies import certification
from headrace.policies.certification import Bounds
from headrace.policies.quality import SetKind
from headrace.stores import card_key
from tests.evidence import rig
from tests.support.defective_headrace import DEFECTS, VARIABLE
from tests.support.scripted import scripted_engine

DEFECTIVE = (sys.executable, "-m", "tests.support.defective_headrace")
AT_ONCE = 4
# A machine that does other things too is slow; what a defect does is slower still, or another thing altogether.
PATIENT = Bounds(
    ttft_s=20.0, tpot_s=5.0, cancel_s=2.0, refusal_s=20.0, goodput_share=0.2, revoked_s=20.0,
    unanswered_s=30.0, recovery_s=90.0, quality_floor=0.8, memory_bytes_per_request=16_384.0, leak_p=0.01,
)  # fmt: skip
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
        args: Of the engine.
        program: The defect of the service's own code, by its name in defective_headrace.
        says: Part of the reason.
    """

    step: str
    says: str
    args: dict[str, Any] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    program: str = ""
    bounds: Bounds = PATIENT
    rate_per_s: float = 20.0
    replicas: int = 1


PLANTED = {
    "slow": Planted(
        "normal-load",
        "ttft 1500 ms, kept for: 0",
        args={"ttft_ms": 4000, "slots": 100},
        bounds=msgspec.structs.replace(PATIENT, ttft_s=1.5),
    ),
    "failing": Planted("normal-load", "failures, kept for", args={"fault": "error:500@1/3"}),
    "wrong answers": Planted("quality", "answered rightly", args={"answer": "Nobody knows."}),
    "leaks: a cache that tenants share": Planted("isolation", "part of another tenant's prompt that comes from a cache", program="shared_cache"),
    "leaks: answers kept for another tenant": Planted(
        "isolation", "things of another tenant that were seen: ", program="shared_answers"
    ),
    "no cancel": Planted("cancel", "answers that their engine went on with: 3", args={"fault": "deaf"}),
    "no Retry-After": Planted("overload", "refused without Retry-After", program="no_retry_after"),
    "double bill": Planted("reconciliation", "records of requests that nobody sent", program="double_bill"),
    "cold cache": Planted("cache", "part of a repeated prompt that comes from the cache: 0", program="cold_cache"),
    "memory growth": Planted("memory", "growth of the service's processes", program="memory_growth"),
    "no rollback": Planted(
        "bad-release", "rolled back after: never", sections={"rollout": BLIND},
        bounds=msgspec.structs.replace(PATIENT, recovery_s=25.0),
    ),
}  # fmt: skip


def deployment(folder: Path, *, args: dict[str, Any], sections: dict[str, Any], replicas: int) -> Path:
    """A file of a scripted service that answers the cases as it should."""
    answers = rig.table(SetKind.ACCEPTANCE)
    told = {**ARGS, "answers": answers, **args}
    if "answer" in args:
        del told["answers"]
    file = folder / "chat.toml"
    file.write_text(
        as_toml(
            {
                "api": "v1",
                "deployment": {"name": "chat", "engine": "scripted"},
                "revision": {"args": told},
                "scale": {"min": replicas, "max": replicas},
                "budget": {"currency": "EUR", "replica_hour": "0.36"},
                **sections,
            }
        )
    )
    return file


async def certify_planted(
    planted: Planted, folder: Path, *, steps: tuple[str, ...], size: Size
) -> ServiceCard:
    path = deployment(folder, args=planted.args, sections=planted.sections, replicas=planted.replicas)
    file = deployments.load(path)
    slo = certification.default_slo("chat", file.spec.slo, planted.bounds)
    data = folder / "data"
    return await certified.of_file(
        file,
        [STEPS[name] for name in steps],
        Terms(
            slo=slo, bounds=planted.bounds, size=size, rate_per_s=planted.rate_per_s, data=data, actor="test"
        ),
        key=card_key.load(data),
        clock=SystemClock(),
        models=None,
        repeat="a test",
        environment={VARIABLE: planted.program, "PYTHONPATH": ":".join(filter(None, sys.path))},
        program=DEFECTIVE if planted.program else HEADRACE,
    )


@pytest.fixture(scope="module")
def cards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ServiceCard]:
    """Every defect with the step that must find it; some at a time, as most of it is waiting."""
    folders = [tmp_path_factory.mktemp("planted") for _ in PLANTED]

    async def all_of_them() -> list[ServiceCard]:
        places = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, planted: Planted) -> ServiceCard:
            async with places:
                return await certify_planted(planted, folders[number], steps=(planted.step,), size=TINY)

        return await asyncio.gather(*(one(*each) for each in enumerate(PLANTED.values())))

    return dict(zip(PLANTED, asyncio.run(all_of_them()), strict=True))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", PLANTED)
def test_each_planted_defect_fails_the_step_that_is_there_for_it(
    cards: dict[str, ServiceCard], name: str
) -> None:
    card, planted = cards[name], PLANTED[name]
    (step,) = card.steps
    assert (step.name, step.verdict) == (planted.step, Verdict.FAIL), msgspec.json.encode(step).decode()
    assert planted.says in step.detail
    assert card.verdict is Verdict.FAIL
    assert not card.may_be_offered


def test_every_defect_of_the_service_is_planted() -> None:
    assert {planted.program for planted in PLANTED.values() if planted.program} == set(DEFECTS)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> ServiceCard:
    planted = Planted("", "", replicas=2)
    size = dataclasses.replace(QUICK, load_s=3.0, trials=2)
    folder = tmp_path_factory.mktemp("good")
    return asyncio.run(certify_planted(planted, folder, steps=tuple(STEPS), size=size))


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
