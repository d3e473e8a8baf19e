"""An experiment on real servers finds what is known to be faster, claims nothing of what isn't, and goes on after it was killed."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.config import surroundings
from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import HeadraceError
from headrace.core.experiments import BASELINE, Arm
from headrace.evidence import experiment, experiment_arms, experiment_page
from headrace.evidence.target import Target
from headrace.policies import experiments as rules
from tests.support.scripted import scripted_engine

COMMAND_LIMIT_S = 300.0
WORKLOAD = """
name = "steady"
stream_share = 1.0
[arrivals]
kind = "closed"
concurrency = 4
[input_tokens]
kind = "constant"
value = 20
[output_tokens]
kind = "constant"
value = 10
"""


def written(folder: Path, text: str) -> Path:
    (folder / "steady.toml").write_text(WORKLOAD)
    file = folder / "experiment.toml"
    file.write_text(text)
    return file


def on_engines(urls: dict[str, str], *, blocks: int, duration_s: float) -> str:
    """The baseline is the first of them; each of the others is a level."""
    base, *levels = urls
    return (
        f'name = "engines"\nblocks = {blocks}\ntarget = {{ url = "{urls[base]}", model = "scripted" }}\n'
        f'[load]\nworkload = "steady.toml"\nduration_s = {duration_s}\nwarmup_s = 0.1\nlate_p99_ms = 60000\n'
        '[primary]\nmetric = "total_p50"\nmargin = 0.05\n[variables.engine]\n'
        + "".join(f'{level}.url = "{urls[level]}"\n' for level in levels)
    )


@contextmanager
def engines(**itl_ms: float) -> Iterator[dict[str, str]]:
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(scripted_engine(slots=8, ttft_ms=10, itl_ms=itl, tokens=10)).url
            for name, itl in itl_ms.items()
        }


def command(*arguments: str, data: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "headrace", *arguments, "--data", str(data)]


def done(*arguments: str, data: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments, data=data),
        capture_output=True,
        text=True,
        timeout=COMMAND_LIMIT_S,
        check=False,
        env=dict(surroundings.inherited()),
    )


@pytest.mark.slow
def test_a_level_that_is_thirty_percent_faster_is_found_and_of_one_that_is_not_nothing_is_claimed(
    tmp_path: Path,
) -> None:
    with engines(baseline=25, same=25, faster=16.5) as urls:
        file = written(tmp_path, on_engines(urls, blocks=4, duration_s=1.2))
        page = tmp_path / "page.html"
        ran = done("experiment", "run", str(file), "--json", "--html", str(page), data=tmp_path / "data")
    report = json.loads(ran.stdout)
    arms = {arm["arm"]: arm for arm in report["arms"]}
    assert arms["engine=faster"]["finding"] == "better", ran.stderr
    assert arms["engine=faster"]["primary"]["ratio"]["estimate"] < 0.85
    assert arms["engine=same"]["finding"] in ("same", "open")
    assert report["chosen"] == "engine=faster"
    assert ran.returncode == (3 if arms["engine=same"]["finding"] == "open" else 0)
    assert "block 4 of 4, 3 of 3" in ran.stderr
    assert page.read_text().count('class="plot"') == 2
    recorded = json.loads(next((tmp_path / "data" / "experiments").rglob("verdict.json")).read_text())
    assert recorded == report


@pytest.mark.slow
def test_an_experiment_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with engines(baseline=1, other=1) as urls:
        file = written(tmp_path, on_engines(urls, blocks=3, duration_s=0.6))
        arguments = command("experiment", "run", str(file), data=data)
        environment = dict(surroundings.inherited())
        with subprocess.Popen(arguments, stderr=subprocess.PIPE, env=environment) as process:
            until_s = time.monotonic() + COMMAND_LIMIT_S
            while len(kept := files(data)) < 2:
                assert time.monotonic() < until_s
                time.sleep(0.01)
            process.send_signal(signal.SIGKILL)
            process.communicate()
        assert len(files(data)) < 6
        assert done("experiment", "show", str(file), data=data).returncode in (3, 4)
        ran = done("experiment", "run", str(file), "--json", data=data)
    report = json.loads(ran.stdout)
    assert len(report["repetitions"]) == len(files(data)) == 6
    assert {path: files(data)[path] for path in kept} == kept
    assert {(each["arm"], each["block"]) for each in report["repetitions"]} == {
        (arm, block) for arm in ("baseline", "engine=other") for block in (1, 2, 3)
    }
    shown = json.loads(done("experiment", "show", str(file), "--json", data=data).stdout)
    assert shown == report


@pytest.mark.slow
def test_an_experiment_that_is_told_to_end_takes_its_service_with_it(tmp_path: Path) -> None:
    """`timeout` and service managers send SIGTERM: nothing goes on running, and no folder stays."""
    (tmp_path / "demo.toml").write_text(
        '[deployment]\nname = "demo"\nengine = "scripted"\n[scale]\nmin = 1\n'
    )
    text = (
        'name = "pace"\ndeployment = "demo.toml"\n[load]\nworkload = "steady.toml"\nduration_s = 300\n'
        '[primary]\nmetric = "total_p50"\n[variables.pace]\nfaster.revision.args = { itl_ms = 12 }\n'
    )
    arguments = command("experiment", "run", str(written(tmp_path, text)), data=tmp_path / "data")
    with tempfile.TemporaryDirectory() as name:  # by a short path: sockets are in it
        environment = {**surroundings.inherited(), "TMPDIR": name}
        with subprocess.Popen(arguments, stderr=subprocess.DEVNULL, env=environment) as process:
            until_s = time.monotonic() + COMMAND_LIMIT_S
            while not (started := list(Path(name).glob("headrace-drill-*/deployment.toml"))):
                assert time.monotonic() < until_s
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            assert process.wait(COMMAND_LIMIT_S) == 143
        assert list(Path(name).iterdir()) == [], started


def files(data: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in (data / "experiments").rglob("block-*.json")}


@pytest.mark.long
def test_levels_of_a_deployment_are_tried_in_services_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "demo.toml").write_text(
        'api = "v1"\n[deployment]\nname = "demo"\nengine = "scripted"\n'
        "[revision]\nargs = { slots = 8, ttft_ms = 20, itl_ms = 25, tokens = 10 }\n"
    )
    text = (
        'name = "pace"\ndeployment = "demo.toml"\nblocks = 3\nfixed.scale = { min = 1, max = 1 }\n'
        '[load]\nworkload = "steady.toml"\nduration_s = 3\nwarmup_s = 0.5\nlate_p99_ms = 60000\n'
        '[primary]\nmetric = "total_p50"\n[variables.pace]\nfaster.revision.args = { itl_ms = 12 }\n'
    )
    ran = done("experiment", "run", str(written(tmp_path, text)), "--json", data=tmp_path / "data")
    report = json.loads(ran.stdout)
    assert (report["chosen"], ran.returncode) == ("pace=faster", 0), ran.stderr
    assert all(each["revisions"] for each in report["repetitions"])


def test_a_level_that_cannot_be_a_deployment_is_told_before_anything_is_started(tmp_path: Path) -> None:
    (tmp_path / "demo.toml").write_text('[deployment]\nname = "demo"\nengine = "scripted"\n')
    text = (
        'name = "pace"\ndeployment = "demo.toml"\n[load]\nworkload = "steady.toml"\n[primary]\nmetric = "total_p50"\n'
        "[variables.pace]\nfaster.revision.args = { itl_mz = 12 }\n"
    )
    ran = done("experiment", "run", str(written(tmp_path, text)), data=tmp_path / "data")
    assert ran.returncode == 2
    assert "pace=faster" in ran.stderr
    assert "itl_ms" in ran.stderr


def test_another_workload_or_deployment_is_another_experiment(tmp_path: Path) -> None:
    text = on_engines({"baseline": "http://127.0.0.1:1", "x": "http://127.0.0.1:2"}, blocks=3, duration_s=1)
    file = written(tmp_path, text)
    first = experiment_arms.setting(file, data=tmp_path)
    assert experiment_arms.setting(file, data=tmp_path).digest == first.digest
    (tmp_path / "steady.toml").write_text(WORKLOAD.replace("value = 10", "value = 11"))
    assert experiment_arms.setting(file, data=tmp_path).digest != first.digest


@pytest.mark.parametrize("cause", [TypeError("a mistake of ours"), HeadraceError("it doesn't start")])
def test_a_level_that_cannot_be_served_is_a_finding_and_a_mistake_of_ours_is_none(
    tmp_path: Path, cause: Exception
) -> None:
    @asynccontextmanager
    async def serve(setting: Any, arm: Arm, *, clock: Clock) -> AsyncIterator[Target]:
        raise ExceptionGroup("of tasks", [ExceptionGroup("of their own", [cause])])
        yield

    urls = {"baseline": "http://127.0.0.1:9", "other": "http://127.0.0.1:10"}
    file = written(tmp_path, on_engines(urls, blocks=3, duration_s=0.6))
    setting = experiment_arms.setting(file, data=tmp_path)
    kept = experiment.Kept(tmp_path / "data", setting)
    ran = experiment.run(setting, kept, clock=SystemClock(), serve=serve)
    if isinstance(cause, HeadraceError):
        asyncio.run(ran)
        assert {each.void for each in kept.repetitions()} == {("it could not be made: it doesn't start",)}
    else:
        with pytest.raises(ExceptionGroup):
            asyncio.run(ran)
        assert not kept.repetitions()


def test_two_runs_of_one_experiment_are_refused_and_a_spoilt_file_is_named(tmp_path: Path) -> None:
    text = on_engines({"baseline": "http://127.0.0.1:1", "x": "http://127.0.0.1:2"}, blocks=3, duration_s=0.2)
    file = written(tmp_path, text)
    setting = experiment_arms.setting(file, data=tmp_path)
    kept = experiment.Kept(tmp_path, setting)
    with kept.sole_writer():
        ran = done("experiment", "run", str(file), data=tmp_path)
        assert ran.returncode == 2
        assert "is being run already" in ran.stderr
    (kept.folder / "block-001.x.json").write_text("{")
    ran = done("experiment", "show", str(file), data=tmp_path)
    assert (ran.returncode, "block-001.x.json" in ran.stderr) == (2, True)


def test_an_experiment_of_nothing_yet_has_a_page_too(tmp_path: Path) -> None:
    text = on_engines({"baseline": "http://127.0.0.1:1", "x": "http://127.0.0.1:2"}, blocks=3, duration_s=1)
    setting = experiment_arms.setting(written(tmp_path, text), data=tmp_path)
    report = experiment.shown(setting, [])
    assert [arm.name for arm in (BASELINE, *rules.singles(setting.experiment))] == ["baseline", "engine=x"]
    assert "could not be made" in experiment_page.html(report)
    assert rules.combination(setting.experiment, report.arms) is None


def test_the_examples_are_experiments_that_can_be_made(tmp_path: Path) -> None:
    folder = Path(__file__).parents[2] / "experiments"
    found = [experiment_arms.setting(path, data=tmp_path) for path in sorted(folder.glob("*.toml"))]
    assert len(found) == 3
    arms: list[Any] = [arm for each in found for arm in rules.singles(each.experiment)]
    assert all(isinstance(arm, Arm) for arm in arms)
