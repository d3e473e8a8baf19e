"""A real MLflow server of the test's own, in an environment of its own that the first test which needs it makes."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.s3 import free_port, wait_for_port

ROOT = Path(__file__).parent.parent.parent
LOCK = ROOT / "requirements" / "mlflow.lock"
ENVIRONMENT = ROOT / ".mlflow-venv"
# The server's own application, without the parts of its command that want larger packages than all that we ask of it.
_START = """
import sys
from mlflow.server import app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), app, threaded=True)
"""
_INSTALL_LIMIT_S = 200


def interpreter() -> Path:
    """Its Python, installed from the lock, once for all tests and processes."""
    python = ENVIRONMENT / "bin" / "python"
    ENVIRONMENT.mkdir(exist_ok=True)
    with (ENVIRONMENT / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = ENVIRONMENT / "installed"
        if not stamp.exists() or stamp.read_text() != LOCK.read_text():
            stamp.unlink(missing_ok=True)
            venv.create(ENVIRONMENT, with_pip=False, symlinks=True)
            pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
            locked = ["--require-hashes", "--only-binary", ":all:", "--requirement", str(LOCK)]
            done = subprocess.run([*pip, *locked], capture_output=True, text=True, timeout=_INSTALL_LIMIT_S)
            assert done.returncode == 0, done.stderr
            stamp.write_text(LOCK.read_text())
    return python


@dataclass(frozen=True)
class MlflowServer:
    url: str

    def call(self, method: str, path: str, body: object | None = None) -> Any:
        """One call of its REST API; MLflow's clients send the same."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/2.0/{path}", content, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or b"{}")

    def register(self, name: str, files: dict[str, bytes], *, tags: dict[str, str] | None = None) -> str:
        """One more version of the model, from a run that logged these files."""
        with contextlib.suppress(urllib.error.HTTPError):  # it is there already
            self.call("POST", "mlflow/registered-models/create", {"name": name})
        run = self.call("POST", "mlflow/runs/create", {"experiment_id": "0"})["run"]["info"]
        for path, content in files.items():
            place = f"0/{run['run_id']}/artifacts/model/{path}"
            request = urllib.request.Request(
                f"{self.url}/api/2.0/mlflow-artifacts/artifacts/{place}", content, method="PUT"
            )
            with urllib.request.urlopen(request, timeout=30):
                pass
        made = self.create_version(name, f"{run['artifact_uri']}/model", run_id=run["run_id"], tags=tags)
        return str(made["version"])

    def create_version(
        self, name: str, source: str, *, run_id: str = "", tags: dict[str, str] | None = None
    ) -> dict[str, Any]:
        labels = [{"key": key, "value": value} for key, value in (tags or {}).items()]
        body = {"name": name, "source": source, "run_id": run_id, "tags": labels}
        version: dict[str, Any] = self.call("POST", "mlflow/model-versions/create", body)["model_version"]
        return version

    def point(self, name: str, *, alias: str, version: str) -> None:
        body = {"name": name, "alias": alias, "version": version}
        self.call("POST", "mlflow/registered-models/alias", body)


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[MlflowServer]:
    port = free_port()
    database = f"sqlite:///{folder / 'mlflow.db'}"
    surroundings = {
        "_MLFLOW_SERVER_FILE_STORE": database,
        "_MLFLOW_SERVER_REGISTRY_STORE": database,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": str(folder / "artifacts"),
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PYTHONPATH": "",
    }
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(interpreter()), "-c", _START, str(port)],
            stdout=output,
            stderr=output,
            env={**os.environ, **surroundings},
            cwd=folder,
        )
    try:
        wait_for_port(port, process, log)
        yield MlflowServer(f"http://127.0.0.1:{port}")
    finally:
        process.terminate()
        process.wait(timeout=30)
