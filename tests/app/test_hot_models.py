"""E2: models come from object storage while the service runs, what a deployment needs stays, and what it doesn't goes."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import llama_server
from tests.support.fleet import Fleet, fleet
from tests.support.provider import wait_until
from tests.support.s3 import S3Server, s3_server
from tests.support.tiny_models import tiny_model, tiny_safetensors

pytestmark = pytest.mark.slow

NAME = "chat"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3") / "log") as running:
        running.make_bucket("models", versions=True)
        yield running


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "llama-server"
    run = f"exec '{sys.executable}' '{llama_server.__file__}' \"$@\""
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "version: 1" && exit\n{run}\n')
    path.chmod(0o755)
    return str(path)


def config(storage: S3Server, **models: int) -> str:
    told = {
        "endpoint": storage.url,
        "region": "eu-central-1",
        "access_key": "env:TEST_S3_ACCESS_KEY",
        "secret_key": "env:TEST_S3_SECRET_KEY",
    }
    lines = [f"{key} = {value}" for key, value in models.items()]
    lines += ["[models.s3]", *(f"{key} = {json.dumps(value)}" for key, value in told.items())]
    return "\n".join(["[models]", *lines, ""])


def deployment(uri: str, program: str) -> str:
    return (
        f'[deployment]\nname = "{NAME}"\nengine = "llamacpp"\n[revision]\nweights = {{ uri = "{uri}" }}\n'
        f'runtime = {{ command = "{program}" }}\nargs = {{ slots = 2, context_tokens = 512 }}\n'
        '[rollout]\nstrategy = "bluegreen"\nsteps = [{ weight = 100, min_requests = 0 }]\ninterval_s = 0.1\n'
        "error_limit = 1000\nkeep_previous_s = 0\n"
        'gate = [{ metric = "failure_rate", max = 1.0, dry_run = true }]\n'
    )


def held(running: Fleet) -> list[str]:
    """The artifacts that are here, by their places."""
    listed = json.loads(running.service.cli("models", "list", "--json").stdout)
    return sorted(each["name"] for each in listed if each["stored"] and each["name"].startswith("s3://"))


def test_models_are_loaded_kept_and_collected_while_the_service_runs(
    storage: S3Server, program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_S3_ACCESS_KEY", storage.access_key)
    monkeypatch.setenv("TEST_S3_SECRET_KEY", storage.secret_key)
    for number in (1, 2):
        tiny = tiny_model(tmp_path, more={"general.name": f"model {number}"})
        storage.put("models", {f"m{number}.gguf": tiny.content}, ChecksumAlgorithm="SHA256")
    storage.put("models", {"unused/model.safetensors": tiny_safetensors()})
    with fleet(config=config(storage)) as running:
        running.apply_file(deployment("s3://models/m1.gguf", program))
        running.until_answered("pong")
        (first,) = held(running)
        assert first.startswith("s3://models/m1.gguf?versionId=")
        with running.callers() as callers:
            running.apply_file(deployment("s3://models/m2.gguf", program))
            running.until_ready("chat@v2")
            # Somebody overwrites what runs, and what a rollback needs: neither is asked for again.
            storage.put("models", {"m1.gguf": b"another", "m2.gguf": b"another"})
            refused = running.service.cli("models", "rm", first, check=False)
            assert refused.returncode == 2
            assert "stays: a rollback may go back to chat@v1" in refused.stderr
            file = tmp_path / "headrace.toml"
            file.write_text(config(storage))
            pulled = (
                "models",
                "pull",
                "s3://models/unused/",
                "--accept-license",
                "ours",
                "--config",
                str(file),
            )
            running.service.cli(*pulled)
            assert "s3://models/unused/" in held(running)
            told = running.service.cli("models", "gc", "--to", "0").stdout
            assert f"kept: {first}: a rollback may go back to chat@v1" in told
            assert "removed: s3://models/unused/" in told
            running.service.cli("rollback", NAME)
            running.until_ready("chat@v1")
        assert callers.statuses == {"200"}, callers.outcomes
        assert len(held(running)) == 2
        running.remove()
        wait_until(lambda: not running.engines(), what="the end of its engine, and of what it held in memory")
        assert running.service.cli("models", "verify").stdout == "2 checked, 0 damaged\n"
