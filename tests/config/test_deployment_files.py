"""What a deployment file may say: everything else is refused with file, key and what would be accepted."""

from pathlib import Path

import msgspec
import pytest

from headrace.config import deployments
from headrace.core.deployments import DeploymentSpec, EngineArgs, EngineKind, Identity
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task

FILE = "chat.toml"
LEAST = '[deployment]\nname = "chat"\nengine = "scripted"\n'
WEIGHTS = '[deployment]\nname = "chat"\nengine = "embedded"\n'
COMMIT = "0123456789abcdef0123456789abcdef01234567"

WHOLE = f"""
api = "v1"
[deployment]
name = "chat-small"
task = "chat"
engine = "vllm"
location = "eu"
[revision]
weights   = {{ uri = "hf://org/model", rev = "{COMMIT}", sha256 = "{"ab" * 32}" }}
tokenizer = {{ uri = "hf://org/model", rev = "{COMMIT}" }}
template  = {{ file = "chat.jinja", sha256 = "{"cd" * 32}" }}
runtime   = {{ package = "vllm==0.11.0", image = "repo@sha256:{"ef" * 32}" }}
args      = {{ context_tokens = 4096, slots = 4, speculation = {{ tokens = 3 }}, flags = ["--enforce-eager"] }}
license   = {{ id = "apache-2.0", allow = ["apache-2.0", "mit"] }}
[shape]
kind = "tp"
gpus = 2
[slo]
ttft_p95_ms = 1500
tpot_p95_ms = 120
error_rate = 0.005
[scale]
min = 1
max = 2
window_s = 60
panic = {{ window_s = 6, ratio = 2.0 }}
up    = {{ delay_s = 0, max_factor = 2.0 }}
down  = {{ delay_s = 600, max_step = 1, margin = 0.8 }}
target = {{ inflight = 4, kv = 0.8 }}
[budget]
currency = "USD"
replica_hour = 0.10
per_day = 5.0
[lifecycle]
ready = {{ prompt = "ping", max_tokens = 1, timeout_s = 20 }}
[rollout]
strategy = "canary"
steps = [ {{ weight = 1, min_requests = 200 }}, {{ weight = 10, min_requests = 1000 }} ]
[[rollout.gate]]
metric = "ttft_p95"
max_ratio = 1.10
[[rollout.gate]]
metric = "quality:acceptance-v3"
min_delta = -0.01
"""


def refusal(content: str) -> str:
    with pytest.raises(ConfigError) as refused:
        deployments.parse(content, file=FILE)
    assert refused.value.message.startswith(f"{FILE}: ")
    return refused.value.message


def test_a_name_and_an_engine_are_enough() -> None:
    assert deployments.parse(LEAST, file=FILE) == DeploymentSpec(Identity("chat", EngineKind.SCRIPTED))


def test_a_whole_file_is_read_as_what_it_says() -> None:
    spec = deployments.parse(WHOLE, file=FILE)
    assert spec.deployment == Identity("chat-small", EngineKind.VLLM, Task.CHAT, "eu")
    assert spec.revision.weights is not None
    assert (spec.revision.weights.rev, spec.revision.args.slots) == (COMMIT, 4)
    assert [step.weight for step in spec.rollout.steps] == [1, 10]
    assert [gate.metric for gate in spec.rollout.gates] == ["ttft_p95", "quality:acceptance-v3"]
    assert (spec.scale.target.inflight, spec.scale.down.margin) == (4, 0.8)


@pytest.mark.parametrize("written", ["0.10", '"0.10"'])
def test_an_amount_is_the_digits_that_stand_there(written: str) -> None:
    spec = deployments.parse(f"{LEAST}[budget]\nreplica_hour = {written}\nper_day = 3", file=FILE)
    assert (spec.budget.replica_hour, spec.budget.replica_hour_pico) == ("0.10", 10**11)
    assert spec.budget.per_day_pico == 3 * 10**12


# Keys


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[deploiment]", "unknown key `deploiment`; did you mean `deployment`?"),
        (LEAST + "[scale.panic]\nwindow = 1", "unknown key `scale.panic.window`; did you mean `scale.panic.window_s`?"),
        (LEAST + "[[rollout.gate]]\nmetrics = 1", "unknown key `rollout.gate[0].metrics`; did you mean `rollout.gate[0].metric`?"),
        (LEAST + "[rollout]\nsteps = [{wait = 1}]", "unknown key `rollout.steps[0].wait`; did you mean `rollout.steps[0].weight`?"),
        (WEIGHTS + '[revision]\nweights = {url = "x"}', "unknown key `revision.weights.url`; did you mean `revision.weights.uri`?"),
        (LEAST + "[revision.args]\nslot = 1", "unknown key `revision.args.slot`; did you mean `revision.args.slots`?"),
        ("", "`deployment` is required"),
        ('[deployment]\nname = "a"', "`deployment.engine` is required"),
        (LEAST + "[[rollout.gate]]\nmax = 1.0", "`rollout.gate[0].metric` is required"),
    ],
)  # fmt: skip
def test_a_key_that_is_not_known_or_missing_is_named(content: str, told: str) -> None:
    assert refusal(content) == f"{FILE}: {told}"


def test_a_key_like_no_other_is_refused_with_all_that_are_accepted() -> None:
    told = refusal(LEAST + "[revision.args]\nzzzz = 1")
    assert all(field.name in told for field in msgspec.structs.fields(EngineArgs))


# Values


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('api = "v2"\n' + LEAST, "`api` must be one of 'v1', got 'v2'"),
        (LEAST.replace("scripted", "vlm"), "`deployment.engine` must be one of 'embedded', 'scripted', 'llamacpp',"
         " 'vllm', 'sglang', 'tgi', 'triton', 'remote', got 'vlm'"),
        (LEAST.replace("chat", "Chat"), "`deployment.name` must be 1 to 63 of a-z, 0-9 and `._-`, a letter or digit first, got 'Chat'"),
        (LEAST + "[scale]\nmax = 0", "`scale.max`: expected a whole number >= 1"),
        (LEAST + "[scale]\nmax = 1.5", "`scale.max`: expected a whole number, got a number"),
        (LEAST + "[rollout]\nsteps = [{weight = 0}]", "`rollout.steps[0].weight`: expected a number > 0.0"),
        (LEAST + "[budget]\nreplica_hour = true", "`budget.replica_hour`: expected text in quotes, got true or false"),
        (WEIGHTS + '[revision]\nweights = {uri = "hf://o/m/f", rev = "main"}',
         "`revision.weights.rev` must be a commit, 40 hexadecimal digits: branches and tags move, got 'main'"),
        (WEIGHTS + '[revision.runtime]\npackage = "vllm>=0.1"',
         "`revision.runtime.package` must be `NAME==VERSION`, an exact version, got 'vllm>=0.1'"),
        (LEAST + "[lifecycle]\nready = 5", "`lifecycle.ready`: expected a table, got a whole number"),
        (LEAST + '[[rollout.gate]]\nmetric = "ttft_p95"\nmax = nan', "`rollout.gate[0].max` must be a number, got nan"),
    ],
)  # fmt: skip
def test_a_value_that_cant_be_is_refused_with_its_key_and_what_it_takes(content: str, told: str) -> None:
    assert refusal(content).split("\n")[0] == f"{FILE}: {told}"


# What belongs together


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (WEIGHTS, "`revision.weights` is required"),
        (WEIGHTS + '[revision]\nsource = "mlflow:models:/a@b"\nweights = {uri = "a"}', "and not both"),
        (WEIGHTS + '[revision]\nsource = "models:/a@b"', "`revision.source` must be an alias such as mlflow:models:/chat@champion"),
        (LEAST + '[revision]\ntokenizer = {uri = "x"}', "`revision.tokenizer`: the engine 'scripted' takes none"),
        (LEAST + '[revision]\nsource = "mlflow:models:/a@b"', "`revision.source`: the engine 'scripted' takes none"),
        (LEAST + '[revision]\nurls = ["http://a"]', "`revision.urls` and `deployment.engine` = \"remote\" go together"),
        (LEAST.replace("scripted", "remote") + '[revision]\nurls = ["http://me:secret@a"]', "`revision.urls` must not hold credentials"),
        (LEAST.replace("scripted", "remote") + '[revision]\nurls = ["a:80"]', "`revision.urls` holds 'a:80'"),
        (LEAST.replace("scripted", "remote") + '[revision]\nurls = ["http://a"]\napi_key = "sk-1"', "never the key itself"),
        (WEIGHTS + '[revision]\nweights = {uri = ""}', "`revision.weights.uri` is required"),
        (WEIGHTS + '[revision]\nweights = {uri = "hf://o/m@main/f"}', "'main' is a branch or a tag"),
        (WEIGHTS + '[revision]\nweights = {uri = "hf://o/m/f"}', "`revision.weights.rev` is required for o/m/f: the commit"),
        (WEIGHTS + f'[revision]\nweights = {{uri = "hf://o/m@{COMMIT}/f", rev = "{COMMIT[::-1]}"}}', f"says {COMMIT}"),
        (WEIGHTS + f'[revision]\nweights = {{uri = "s3://b/f", rev = "{COMMIT}"}}', "pin others with `revision.weights.sha256`"),
        (LEAST + "[scale]\nmin = 3\nmax = 2", "`scale.min` must be at most `scale.max`, got 3 and 2"),
        (LEAST + "[scale]\nwarm = 2", "`scale.warm` must be at most `scale.max`, got 2 and 1"),
        (LEAST + "[scale]\nmin = 0", "`scale.min` = 0 and `scale.idle_to_zero_s` go together"),
        (LEAST + "[scale]\nidle_to_zero_s = 60", "`scale.min` = 0 and `scale.idle_to_zero_s` go together"),
        (LEAST + "[scale]\ndown = {delay_s = 30}", "`scale.down.delay_s` must be at least `scale.window_s`, got 30 and 60"),
        (LEAST + "[scale]\npanic = {window_s = 60}", "`scale.panic.window_s` must be below `scale.window_s`, got 60 and 60"),
        (LEAST + '[budget]\ncurrency = "Euro"', "`budget.currency` must be three capital letters such as EUR"),
        (LEAST + "[budget]\nreplica_hour = -1", "`budget.replica_hour` must be at least 0, got -1"),
        (LEAST + "[budget]\nper_day = 1e3", "`budget.per_day`: '1e3' is not an amount"),
        (LEAST + "[budget]\nper_day = 1", "`budget.per_day` needs `budget.replica_hour`"),
        (LEAST + "[budget]\nper_day = 1\nreplica_hour = 0.1", "`scale.min` = 1 replicas for a day cost 2.40"),
        (LEAST + "[lifecycle]\nstart_timeout_s = 5", "`lifecycle.start_stall_s` must be at most `lifecycle.start_timeout_s`"),
        (LEAST + "[rollout]\nsteps = [{weight = 5}, {weight = 5}]", "`rollout.steps` must grow in `weight`, got 5, 5"),
        (LEAST + "[rollout]\nsteps = []", "`rollout.steps` needs at least one step"),
        (LEAST + '[rollout]\nstrategy = "shadow"', "`rollout.mirror.percent` is required"),
        (LEAST + "[rollout]\nmax_duration_s = 100", "`rollout.max_duration_s` must be at least 180"),
        (LEAST + '[[rollout.gate]]\nmetric = "ttft"\nmax = 1.0', "`rollout.gate[0].metric` must be one of failure_rate,"),
        (LEAST + '[[rollout.gate]]\nmetric = "quality:"\nmin = 1.0', "or quality:SET, got 'quality:'"),
        (LEAST + '[[rollout.gate]]\nmetric = "ttft_p95"', "`rollout.gate[0]` needs a bound"),
        (LEAST + '[[rollout.gate]]\nmetric = "ttft_p95"\ncompare = "absolute"\nmax_ratio = 1.1',
         '`rollout.gate[0].max_ratio` needs `rollout.gate[0].compare` = "control"'),
    ],
)  # fmt: skip
def test_keys_that_contradict_each_other_are_refused_by_name(content: str, told: str) -> None:
    """ray#26455: a delay below the window; and the other pairs that cost somebody their service."""
    assert told in refusal(content)


def test_the_scripted_engine_may_have_weights_that_it_does_not_read() -> None:
    """They are fetched and checked like anybody's, which can be rehearsed so."""
    weights = deployments.parse(LEAST + '[revision]\nweights = {uri = "x"}', file=FILE).revision.weights
    assert weights is not None
    assert weights.uri == "x"


def test_everything_that_is_wrong_is_told_at_once() -> None:
    told = refusal(LEAST + "[scale]\nmin = 3\nmax = 2\nwarm = 5")
    assert [line.split(": ")[0] for line in told.split("\n")] == [FILE, FILE]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("[scale]\nmax = 4\nup = {max_factor = 10}", "`scale.up.max_factor` 10 is above 2"),
        (
            "[scale]\nmax = 4\n[budget]\nreplica_hour = 1\nper_day = 24",
            "cost 96.00 USD, more than `budget.per_day`",
        ),
        ('[rollout]\nstrategy = "recreate"', "serves nobody between"),
    ],
)
def test_what_is_possible_and_seldom_meant_is_a_warning(content: str, told: str) -> None:
    """ray#63279: a gain of ten made a fleet swing between 2 and 500."""
    (warning,) = deployments.given(LEAST + content, {}, file=FILE).warnings
    assert told in warning


def test_a_quiet_file_has_no_warnings() -> None:
    assert deployments.given(LEAST, {}, file=FILE).warnings == ()


# Files


def write(path: Path, content: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    return path


def test_a_template_is_read_beside_its_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / FILE, WEIGHTS + '[revision]\nweights = {uri = "m"}\ntemplate = {file = "t.jinja"}'
    )
    with pytest.raises(ConfigError, match=r"`revision\.template\.file`: .*t\.jinja cannot be read"):
        deployments.load(path)
    write(tmp_path / "t.jinja", "{{ messages }}")
    loaded = deployments.load(path)
    assert loaded.templates == {"t.jinja": "{{ messages }}"}
    assert deployments.given(loaded.text, loaded.templates, file=loaded.name) == loaded
    with pytest.raises(ConfigError, match=r"t\.jinja was not sent"):
        deployments.given(loaded.text, {}, file=FILE)


def test_files_are_found_in_the_folder_by_default_and_where_one_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="no deployment file"):
        deployments.find([])
    other = write(tmp_path / "other" / "b.toml", LEAST)
    write(tmp_path / "deployments" / "a.toml", LEAST)
    assert deployments.find([]) == [Path("deployments/a.toml")]
    assert deployments.find([str(other), "other"]) == [other, Path("other/b.toml")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="empty: no deployment file"):
        deployments.find(["empty"])


def test_two_files_are_never_one_deployment(tmp_path: Path) -> None:
    paths = [write(tmp_path / name, LEAST) for name in ("a.toml", "b.toml")]
    assert [file.spec.name for file in deployments.load_all(paths[:1])] == ["chat"]
    with pytest.raises(ConfigError, match=r"b\.toml: `deployment\.name` is 'chat', as in .*a\.toml"):
        deployments.load_all(paths)


@pytest.mark.parametrize("content", [b"[scale", b"a = 1\na = 2", b"\xff\xfe", b"x = " + b"[" * 10_000])
def test_what_is_no_toml_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / FILE
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"not valid TOML|no text in UTF-8") as refused:
        deployments.load(path)
    assert refused.value.message.startswith(f"{path}: ")


def test_a_file_that_cant_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        deployments.load(tmp_path / "missing.toml")
    large = tmp_path / "large.toml"
    large.write_bytes(b"#" * (deployments.FILE_BYTES_MAX + 1))
    with pytest.raises(ConfigError, match="larger than"):
        deployments.load(large)
