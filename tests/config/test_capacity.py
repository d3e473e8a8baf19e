"""What a capacity file says, and what can't be meant."""

from pathlib import Path

import pytest

from headrace.config import capacity
from headrace.core.errors import ConfigError

BASE = 'name = "x"\n[load]\nrate_per_s = 1\n[replica]\nat_once = 4\n'


MEMORY = BASE + "time_s = 1\n[replica.memory]\ndevice_mib = 1000\n"
ARCHITECTURE = "[replica.memory.architecture]\nlayers = 2\nkv_heads = 1\nhead_size = 8\nembedding = 8\nfeed_forward = 8\nvocabulary = 9\n"


def test_the_committed_plans_can_be_read() -> None:
    files = sorted((Path(__file__).parents[2] / "capacity").glob("*.toml"))
    assert {capacity.load(file).name for file in files} == {file.stem for file in files}
    assert files


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BASE, "`replica`: give `time_s`, or `prefill_tokens_per_s` and `step_s`"),
        (BASE + "prefill_tokens_per_s = 100\nstep_s = 0.1\n", "`load.output_tokens` is missing"),
        (
            BASE + 'time_s = 1\n[costs]\ndate = "today"\nreplica_hour = "a lot"\n',
            "`costs.replica_hour`: 'a lot'",
        ),
        (
            BASE + 'time_s = 1\n[costs]\ndate = "today"\nnetwork_gb = "-1"\n',
            "`costs.network_gb` must not be below 0",
        ),
        (BASE + 'time_s = 1\n[costs]\ndate = "today"\ncurrency = "dollars"\n', "three capital letters"),
        (BASE + "time_s = 1\nslotz = 4\n", "slotz"),
        (BASE.replace("= 1", "= 1\npeak = 0.5") + "time_s = 1\n", "`load.peak`"),
        (BASE.replace("= 1", "= 1\nquiet = 1.5") + "time_s = 1\n", "`load.quiet`"),
        ("name = ", "not valid TOML"),
        (
            'name = "x"\n[load]\nrate_per_s = 1\n[replica]\ntime_s = 1\n',
            "`replica`: give `at_once`, or `[replica.memory]`",
        ),
        (
            BASE + 'time_s = 1\n[promise]\nslo = "chat"\nttft_s = 1\n',
            "`promise.slo` takes the place of every",
        ),
        (MEMORY, "`replica.memory`: give `model`, or `[replica.memory.architecture]` and `parameters`"),
        (MEMORY + 'model = "a"\n', "`load.input_tokens` and `load.output_tokens`, or `context_tokens`"),
        (MEMORY + 'model = "a"\nkv_cache_type = "fp7"\n', "must be one of f32, f16"),
        (MEMORY + 'model = "a"\n' + ARCHITECTURE, "`model` has an architecture of its own"),
        (MEMORY + ARCHITECTURE, "give `parameters` and `weights_bits`"),
        (
            MEMORY + ARCHITECTURE + "windowed_layers = 3\n",
            "`window_tokens` and `windowed_layers` go together",
        ),
        (MEMORY + ARCHITECTURE + "windowed_layers = 3\n", "must be at most `layers`, 2"),
        (MEMORY + ARCHITECTURE + "position_size = 3\n", "give `latent_size` too"),
        (
            BASE
            + 'time_s = 1\n[[choices]]\nname = "b"\n[choices.replica]\ntime_s = 1\n[choices.replica.memory]\ndevice_mib = 9\n',
            "`choices[0].replica.memory`: give `model`, or",
        ),
    ],
)
def test_what_cannot_be_meant_is_told_with_its_key(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"plan\.toml") as told:
        capacity.parse(text, file="plan.toml")
    assert says in str(told.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.toml cannot be read"):
        capacity.load(tmp_path / "gone.toml")
    (tmp_path / "large.toml").write_text("#" * 70_000)
    with pytest.raises(ConfigError, match="larger than"):
        capacity.load(tmp_path / "large.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        capacity.load(tmp_path / "latin.toml")
