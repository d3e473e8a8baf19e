"""What a workload file says is what is meant, or is told in its own words."""

import re
from pathlib import Path

import pytest

from headrace.config import workloads
from headrace.core.errors import ConfigError
from headrace.core.workload import ArrivalKind, LengthKind, Lengths
from headrace.evidence import requests

EXAMPLES = Path(__file__).parents[2] / "workloads"
WHOLE = """
name = "w"

[arrivals]
kind = "poisson"
rate_per_s = 2.0

[input_tokens]
kind = "constant"
value = 100

[output_tokens]
kind = "lognormal"
median = 20
sigma = 0.5
"""


def test_a_file_is_what_it_says_and_defaults_for_the_rest() -> None:
    found = workloads.parse(WHOLE, file="w.toml")
    assert found.arrivals.kind is ArrivalKind.POISSON
    assert found.output_tokens == Lengths(LengthKind.LOGNORMAL, median=20.0, sigma=0.5)
    assert (found.stream_share, found.seed, found.turns.count.value) == (1.0, 1, 1)


@pytest.mark.parametrize(
    ("changed", "by", "told"),
    [
        ("rate_per_s", "rate_per_second", "unknown key `arrivals.rate_per_second`; did you mean `arrivals.rate_per_s`?"),
        ('"poisson"', '"pareto"', "`arrivals.kind` must be one of"),
        ("rate_per_s = 2.0", "", "`arrivals.rate_per_s` is required for arrivals of the kind 'poisson'"),
        ("rate_per_s = 2.0", "rate_per_s = inf", "`arrivals.rate_per_s`"),
        ("rate_per_s = 2.0", "rate_per_s = 2.0\nburstiness = 3", "it is for 'gamma', 'diurnal', 'ramp'"),
        ("rate_per_s = 2.0", "rate_per_s = 2.0\nbusy_s = 3", "`arrivals.busy_s` and `arrivals.idle_s` go together"),
        ("rate_per_s = 2.0", "rate_per_s = 2.0\nmodulation_s = 0", "`arrivals.modulation_s` must be at least 0.1"),
        ("rate_per_s = 2.0", "rate_per_s = 2.0\nbusy_s = 1e-300\nidle_s = 5", "`arrivals.busy_s` must be at least 0.1, got 1e-300"),
        ("value = 100", "", "`input_tokens.value` is required"),
        ("value = 100", "value = 100\nsigma = 1", "`input_tokens.sigma` says nothing of lengths of the kind 'constant'"),
        ("value = 100", "value = 100\nminimum = 9\nmaximum = 8", "`input_tokens.minimum` must be at most"),
        ("median = 20", "", "`output_tokens.median` is required"),
        ("median = 20", "median = nan", "`output_tokens.median`"),
        ('kind = "constant"\nvalue = 100', 'kind = "empirical"\nquantiles = [3, 2]', "`input_tokens.quantiles` must be"),
        ("[output_tokens]", "[outputs]", "unknown key `outputs`"),
        ("[input_tokens]\nkind = \"constant\"\nvalue = 100", "", "`input_tokens` is required"),
        ('name = "w"', 'name = "W W"', "`name` must be 1 to 63 of"),
        ('name = "w"', 'name = "w"\n[prefixes]\ngroups = 3', "`prefixes.groups` and `prefixes.tokens` go together"),
        ('name = "w"', 'name = "w"\n[cancel]\nshare = 0.1', "`cancel.share` needs one of"),
        ('name = "w"', 'name = "w"\n[cancel]\nafter_s = 1', "`cancel.share` needs one of"),
        (
            'name = "w"',
            'name = "w"\n[turns]\ncount = { kind = "uniform", maximum = 5000 }',
            "`turns.count.maximum` must be at most 1000, got 5000",
        ),
        (
            'name = "w"',
            'name = "w"\n[turns]\ncount = { kind = "empirical", quantiles = [1, 5000] }',
            "`turns.count.maximum` must be at most 1000, got 5000",
        ),
        (
            'kind = "poisson"\nrate_per_s = 2.0',
            'kind = "trace"\nfile = "t.csv"\n[turns]\ngap_s = 3',
            "`turns` says nothing of a trace",
        ),
        ('name = "w"', "name = ", "not valid TOML"),
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_told_in_the_words_of_the_file(changed: str, by: str, told: str) -> None:
    assert changed in WHOLE
    with pytest.raises(ConfigError, match=r"^w\.toml: .*" + re.escape(told)):
        workloads.parse(WHOLE.replace(changed, by, 1), file="w.toml")


def test_everything_that_is_wrong_is_told_at_once() -> None:
    broken = WHOLE.replace("rate_per_s = 2.0", "think_s = 1").replace("value = 100", "median = 3.0")
    with pytest.raises(ConfigError) as told:
        workloads.parse(broken, file="w.toml")
    assert len(str(told.value).splitlines()) == 4


def test_a_trace_is_the_one_that_is_meant(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival_ms,input_tokens\n0,5\n")
    path = tmp_path / "w.toml"
    path.write_text('name = "w"\n[arrivals]\nkind = "trace"\nfile = "t.csv"\n')
    found = workloads.load(path)
    assert found.arrivals.file == str(tmp_path / "t.csv")
    assert len(found.arrivals.sha256) == 64
    path.write_text(f'name = "w"\n[arrivals]\nkind = "trace"\nfile = "t.csv"\nsha256 = "{"0" * 64}"\n')
    with pytest.raises(ConfigError, match=f"has another, {found.arrivals.sha256}"):
        workloads.load(path)
    (tmp_path / "t.csv").unlink()
    with pytest.raises(ConfigError, match=r"`arrivals.file`: .* cannot be read"):
        workloads.load(path)


def test_what_is_no_file_of_text_is_told(tmp_path: Path) -> None:
    path = tmp_path / "w.toml"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        workloads.load(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="no text in UTF-8"):
        workloads.load(path)
    path.write_bytes(b"#" * (workloads.FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        workloads.load(path)


@pytest.mark.parametrize(
    "path",
    [*sorted(EXAMPLES.glob("*.toml")), *sorted(requests.OWN.glob("*.toml"))],
    ids=lambda path: path.stem,
)
def test_every_workload_of_the_repository_is_accepted_and_written_as_it_was_read(path: Path) -> None:
    found = workloads.load(path)
    assert found.name == path.stem
    assert workloads.parse(workloads.toml(found), file="again") == found


def test_what_a_file_may_say_is_written_so_that_it_is_read_again() -> None:
    said = 'name = "w"\nabout = "a \\"quoted\\" line\\nand é"\n'
    found = workloads.parse(WHOLE.replace('name = "w"', said), file="w.toml")
    assert workloads.parse(workloads.toml(found), file="again") == found


@pytest.mark.parametrize("name", [requests.DEFAULT, requests.SMALL])
def test_workloads_that_come_with_headrace_are_found_by_their_name(name: str, tmp_path: Path) -> None:
    assert requests.load(name).name == name
    assert requests.load(name, data=tmp_path) == requests.load(str(requests.OWN / f"{name}.toml"))


def test_a_workload_of_ones_own_lies_in_the_data_directory(tmp_path: Path) -> None:
    (tmp_path / "workloads").mkdir()
    (tmp_path / "workloads" / "mine.toml").write_text(WHOLE)
    assert requests.load("mine", data=tmp_path).name == "w"
    with pytest.raises(ConfigError, match=r"give a \.toml file, or one of: document-assistant, mine, small"):
        requests.load("yours", data=tmp_path)
