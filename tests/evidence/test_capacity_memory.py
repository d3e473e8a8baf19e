"""How many requests a replica of a plan runs at once: by its memory, by what is promised, or as it is stated."""

import json
from pathlib import Path

import pytest

from headrace.config import capacity as files
from headrace.core.capacity_plan import CapacityPlan
from headrace.core.errors import ConfigError
from headrace.core.slo import LoadLimits, Metric, Objective, Slo
from headrace.core.verdicts import Verdict
from headrace.evidence import capacity_memory, simulate
from headrace.evidence.capacity_memory import Fitting
from headrace.evidence.simulate import Case
from headrace.evidence.simulate_load import promise_of_slo, simulated
from headrace.evidence.simulate_replica import Pace
from headrace.evidence.simulate_work import Work
from headrace.stores.registry import ModelStore
from tests.support.tiny_models import tiny_model, tiny_safetensors

LOAD = 'name = "x"\n[load]\nrate_per_s = 1\ninput_tokens = 1000\noutput_tokens = 200\n'
PACE = "prefill_tokens_per_s = 1000\nstep_s = 0.01\nstep_per_active_s = 0.001\n"
ARCHITECTURE = (
    "parameters = 8e9\nweights_bits = 16\nreserved_mib = 3584\n[replica.memory.architecture]\nlayers = 32\nkv_heads = 8\n"
    "head_size = 128\nembedding = 4096\nfeed_forward = 14336\nvocabulary = 128256\n"
)
CONFIG = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "intermediate_size": 14336, "vocab_size": 128256,
}  # fmt: skip


def resolved(
    text: str, tmp_path: Path, *, tpot_s: float | None = None, is_measured: bool = False
) -> tuple[CapacityPlan, tuple[Fitting, ...]]:
    plan = files.parse(LOAD + text, file="plan.toml")
    return capacity_memory.resolve(
        plan, ModelStore(tmp_path / "models"), tpot_s=tpot_s, is_measured=is_measured
    )


def first(at_once: str = "", *, more: str = "device_mib = 76294\n" + ARCHITECTURE) -> str:
    return f"[replica]\n{at_once}{PACE}[replica.memory]\n{more}"


@pytest.mark.parametrize(
    ("at_once", "tpot_s", "bound", "runs"),
    [
        ("", None, "memory", 295),
        ("at_once = 64\n", None, "stated", 64),
        ("at_once = 500\n", None, "memory", 295),
        ("", 0.11, "time per token", 100),
        ("", 0.005, "time per token", 1),
    ],
)
def test_the_least_of_all_that_is_known_counts(
    at_once: str, tpot_s: float | None, bound: str, runs: int, tmp_path: Path
) -> None:
    plan, (fitting,) = resolved(first(at_once), tmp_path, tpot_s=tpot_s)
    assert (fitting.bound, fitting.at_once) == (bound, runs)
    assert plan.replica.at_once == runs


def test_a_choice_is_of_the_same_model_and_changes_what_it_says(tmp_path: Path) -> None:
    text = first() + (
        f'[[choices]]\nname = "fp8"\n[choices.replica]\n{PACE}[choices.replica.memory]\ndevice_mib = 76294\n'
        f'reserved_mib = 3584\nweights_bits = 8\nkv_cache_type = "fp8"\n[[choices]]\nname = "small device"\n[choices.replica]\n'
        f'{PACE}[choices.replica.memory]\ndevice_mib = 12000\n[[choices]]\nname = "stated"\n[choices.replica]\nat_once = 4\n{PACE}'
    )
    plan, (planned, fp8, small) = resolved(text, tmp_path)
    assert fp8.room.weights_bytes * 2 == planned.room.weights_bytes
    assert fp8.room.token_bytes * 2 == planned.room.token_bytes
    assert fp8.at_once > 2 * planned.at_once
    assert (small.at_once, small.room.devices_min) == (0, 2)
    assert "15,613 MiB before the first request" in small.lacks
    assert small.lacks.endswith("it takes 2 devices at least")
    assert [each.replica.at_once for each in plan.choices] == [fp8.at_once, 0, 4]


def test_a_plan_whose_model_does_not_fit_is_refused_unless_it_was_measured(tmp_path: Path) -> None:
    text = first(more="device_mib = 3000\n" + ARCHITECTURE)
    with pytest.raises(
        ConfigError, match=r"`replica.memory`: the model does not fit: .* no number of such devices helps"
    ):
        resolved(text, tmp_path)
    assert resolved(text, tmp_path, is_measured=True)[1] == ()


def test_weights_that_are_here_say_themselves_what_they_are(tmp_path: Path) -> None:
    """A file by its path; a folder; and a folder with nothing but what is published, to which the size must be added."""
    metadata = {
        "llama.embedding_length": 64, "llama.block_count": 2, "llama.attention.head_count": 4,
        "llama.feed_forward_length": 128,
    }  # fmt: skip
    (tmp_path / "tiny.gguf").write_bytes(tiny_model(tmp_path, more=metadata).content)
    _, (of_file,) = resolved(first(more=f'device_mib = 1000\nmodel = "{tmp_path}/tiny.gguf"\n'), tmp_path)
    assert of_file.room.weights_bytes == (tmp_path / "tiny.gguf").stat().st_size
    assert of_file.room.token_bytes == 2 * 2 * 64 * 2

    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    published = first(more=f'device_mib = 76294\nmodel = "{folder}"\n')
    with pytest.raises(ConfigError, match=r"`replica.memory`: nothing says how large the weights are"):
        resolved(published, tmp_path)
    _, (sized,) = resolved(published + "parameters = 8e9\nweights_bits = 16\n", tmp_path)
    assert sized.room.weights_bytes == 16_000_000_000
    assert sized.room.token_bytes == 128 * 1024
    (folder / "model.safetensors").write_bytes(tiny_safetensors())
    _, (whole,) = resolved(published, tmp_path)
    assert whole.room.weights_bytes == (folder / "model.safetensors").stat().st_size
    _, (quantised,) = resolved(published + "weights_bits = 4\n", tmp_path)
    assert quantised.room.weights_bytes == 256 // 2, "of the parameters that its header counts"


def test_a_model_that_is_not_here_or_says_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"`replica.memory.model`: 'nobody' is neither a model that is here"
    ):
        resolved(first(more='device_mib = 1000\nmodel = "nobody"\n'), tmp_path)
    (tmp_path / "weights").write_bytes(b"none")
    with pytest.raises(ConfigError, match=r"doesn't say what a memory plan needs"):
        resolved(first(more=f'device_mib = 1000\nmodel = "{tmp_path}/weights"\n'), tmp_path)


# What is promised


def works(seed: int) -> list[Work]:
    """A request a second, every fifth of them long: its first token takes 2 s."""
    return [Work(float(at), 2000 if at % 5 == 0 else 10, 10) for at in range(200)]


def judged(slo: Slo, runs: int = 2) -> simulate.Figures:
    pace = Pace(slots=4, prefill_tokens_per_s=1000.0, step_s=0.01, step_per_active_s=0.0)
    case = Case(works, pace, promise_of_slo(slo), 200.0, slo=slo)
    return simulate.replicate(case, 8, seeds=range(runs))


def promise(metric: Metric, within_ms: float, share: float) -> Objective:
    return Objective(metric, within_ms, share)


def test_each_promise_of_an_slo_has_a_share_of_its_own() -> None:
    found = judged(
        Slo(
            "x",
            failure_share_max=0.05,
            objectives=(promise(Metric.TTFT, 1000, 0.7), promise(Metric.TOTAL, 2300, 0.9)),
        )
    )
    assert {each.name: each.reached.estimate for each in found.kept} == {
        "answered whole": 1.0,
        "ttft 1000 ms": pytest.approx(0.8, abs=0.01),
        "total 2300 ms": 1.0,
    }
    assert found.verdict is Verdict.PASS
    assert found.attainment.estimate == pytest.approx(0.8, abs=0.01), "all of them together"
    strict = judged(Slo("x", objectives=(promise(Metric.TTFT, 1000, 0.9), promise(Metric.TOTAL, 2300, 0.9))))
    assert [each.verdict for each in strict.kept] == [Verdict.FAIL, Verdict.PASS]
    assert strict.verdict is Verdict.FAIL


def test_what_is_longer_than_an_slo_covers_is_nobody_s_broken_promise_and_nobody_s_kept_one() -> None:
    ttft = (promise(Metric.TTFT, 1000, 0.9),)
    short = judged(Slo("x", objectives=ttft, load=LoadLimits(input_tokens_max=1000)))
    assert short.verdict is Verdict.PASS
    assert short.excused.estimate == pytest.approx(0.2, abs=0.01)
    nothing = judged(Slo("x", objectives=ttft, load=LoadLimits(input_tokens_max=5)))
    assert nothing.kept[0].reached.estimate is None
    assert nothing.verdict is Verdict.INCONCLUSIVE


def test_few_requests_show_no_promise_though_none_of_them_missed_it() -> None:
    """320 of 320 in time would come by chance where 1.2 % are missed; of as many as it takes, the same is a pass."""
    bound = (promise(Metric.TTFT, 3000, 0.99),)
    few = judged(Slo("x", objectives=bound))
    assert (few.requests, few.kept[0].reached.estimate, few.verdict) == (320, 1.0, Verdict.INCONCLUSIVE)
    assert few.kept[0].reached.low == pytest.approx(0.9885, abs=1e-4)
    assert judged(Slo("x", objectives=bound), runs=4).verdict is Verdict.PASS


def test_what_is_refused_is_no_answer() -> None:
    slo = Slo("x", failure_share_max=0.01)
    pace = Pace(slots=1, prefill_tokens_per_s=200.0, step_s=0.01, step_per_active_s=0.0)
    found = simulate.replicate(Case(works, pace, promise_of_slo(slo), 200.0, slo=slo), 1, seeds=(1, 2))
    assert found.refused.estimate == pytest.approx(1 - (found.kept[0].reached.estimate or 0.0))
    assert found.verdict is Verdict.FAIL


def test_what_no_request_gets_that_has_a_replica_to_itself_is_not_looked_for_in_larger_fleets() -> None:
    """Every fifth takes 2 s to its first token, wherever it is: 90 % within 1 s is out of reach, 70 % is not."""
    pace = Pace(slots=4, prefill_tokens_per_s=1000.0, step_s=0.01, step_per_active_s=0.0)
    found = []
    for share in (0.9, 0.7):
        slo = Slo("x", objectives=(promise(Metric.TTFT, 1000, share),))
        case = Case(works, pace, promise_of_slo(slo), 200.0, slo=slo)
        found.append(simulate.fewest(case, least=1, seeds=(1,)))
    assert found[0] is None
    assert found[1] is not None


def test_pauses_in_streams_are_left_out_and_that_is_said() -> None:
    itl, ttft = promise(Metric.ITL, 500, 0.9), promise(Metric.TTFT, 1000, 0.9)
    slo, notes = simulated(Slo("x", objectives=(itl, ttft)))
    assert slo.objectives == (ttft,)
    assert notes == ["itl 500 ms is not judged here: of pauses in streams a simulation knows the mean alone."]
    with pytest.raises(ConfigError, match="`headrace slo check`"):
        simulated(Slo("x", objectives=(itl,)))
