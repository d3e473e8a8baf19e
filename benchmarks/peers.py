"""Other programs that stand between callers and engines, installed and started as their own documentation advises.

Each Python package gets an environment of its own, in a cache, so that nothing of it touches this project's. Versions are
pinned, printed, and stored with the figures.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import machine
from benchmarks.rig import BenchmarkFailed, Rig, Running, free_port

INSTALL_LIMIT_S = 900
START_LIMIT_S = 180.0

_HAPROXY = """
global
  nbthread 1
  maxconn 8192
defaults
  mode http
  timeout connect 5s
  timeout client 600s
  timeout server 600s
  option http-keep-alive
  option http-no-delay
  http-reuse always
frontend f
  bind 127.0.0.1:{port}
  default_backend b
backend b
  balance leastconn
{servers}
"""
_LITELLM = """
model_list:
{models}
router_settings: {{routing_strategy: simple-shuffle}}
litellm_settings: {{drop_params: true, request_timeout: 600, telemetry: false}}
general_settings: {{master_key: {key}}}
"""


@dataclass(frozen=True, slots=True)
class Peer:
    """One of them.

    Attributes:
        package: What pip installs, "" for a program of the system.
        start: Starts it on a core in front of servers (their ports) that offer a model; returns its port and process.
        loads: What it is asked to do; a load that would take it minutes tells nothing more.
        path: Answers as soon as it is ready.
    """

    name: str
    package: str
    start: Callable[["Peer", Rig, str, Sequence[int], int, str], tuple[int, Running]]
    loads: frozenset[str] = frozenset({"whole", "latency", "hot", "paced"})
    path: str = "/health"
    environment: dict[str, str] = field(default_factory=dict)

    def is_there(self) -> bool:
        """Whether it can be started without installing anything."""
        return _installed(self).exists() if self.package else machine.program(self.name) is not None

    def version(self) -> str:
        if self.package:
            return self.package.partition("==")[2]
        program = machine.program(self.name)
        said = subprocess.run(
            [program or self.name, "-v"], capture_output=True, text=True, timeout=10, check=False
        )
        return (said.stdout or said.stderr).splitlines()[0].strip()


def install(peer: Peer, tell: Callable[[str], None]) -> None:
    """Makes its environment if it isn't there yet. Raises BenchmarkFailed with what to do."""
    if peer.is_there():
        return
    if not peer.package:
        raise BenchmarkFailed(
            f"{peer.name} isn't installed; on Debian or Ubuntu: apt-get install {peer.name}"
        )
    folder = _folder(peer)
    tell(f"installing {peer.package} into {folder}")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=False, symlinks=True)
    command = [sys.executable, "-m", "pip", "--python", str(_python(peer)), "install", "-q", peer.package]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    if done.returncode:
        raise BenchmarkFailed(f"{peer.package} can't be installed:\n{done.stderr[-1000:]}")
    _installed(peer).touch()


def _folder(peer: Peer) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "headrace-benchmarks" / re.sub(r"[^a-z0-9.]+", "-", peer.package)


def _python(peer: Peer) -> Path:
    return _folder(peer) / "bin" / "python"


def _installed(peer: Peer) -> Path:
    """Written last, so that half an installation is begun anew."""
    return _folder(peer) / "installed"


def _haproxy(
    peer: Peer, rig: Rig, model: str, ports: Sequence[int], core: int, key: str
) -> tuple[int, Running]:
    port = free_port()
    file = rig.folder / f"haproxy-{model}.cfg"
    servers = "\n".join(f"  server s{number} 127.0.0.1:{each}" for number, each in enumerate(ports))
    file.write_text(_HAPROXY.format(port=port, servers=servers))
    command = [machine.program("haproxy") or "haproxy", "-f", str(file), "-db"]
    return port, rig.start(f"haproxy-{model}", command, port=port, core=core)


def _router(module: str) -> Callable[[Peer, Rig, str, Sequence[int], int, str], tuple[int, Running]]:
    def start(
        peer: Peer, rig: Rig, model: str, ports: Sequence[int], core: int, key: str
    ) -> tuple[int, Running]:
        port, metrics = free_port(), free_port()
        command = [str(_python(peer)), "-m", module, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--worker-urls", *(f"http://127.0.0.1:{each}" for each in ports)]
        command += ["--policy", "round_robin", "--log-level", "error", "--prometheus-port", str(metrics)]
        return port, rig.start(
            f"{peer.name}-{model}", command, port=port, core=core, path=peer.path, limit_s=START_LIMIT_S
        )

    return start


def _litellm(
    peer: Peer, rig: Rig, model: str, ports: Sequence[int], core: int, key: str
) -> tuple[int, Running]:
    port = free_port()
    file = rig.folder / f"litellm-{model}.yaml"
    # A model name with a known price: LiteLLM logs a failed look-up for each answer of an unknown one.
    models = "\n".join(
        f"  - {{model_name: {model}, litellm_params: {{model: openai/gpt-4o-mini, "
        f"api_base: 'http://127.0.0.1:{each}/v1', api_key: x}}}}"
        for each in ports
    )
    file.write_text(_LITELLM.format(models=models, key=key))
    command = [str(_python(peer).with_name("litellm")), "--config", str(file), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--num_workers", "1"]
    return port, rig.start(
        f"litellm-{model}", command, port=port, core=core, path=peer.path, limit_s=START_LIMIT_S,
        environment=peer.environment,
    )  # fmt: skip


PEERS = {
    peer.name: peer
    for peer in (
        Peer("haproxy", "", _haproxy, path="/"),
        Peer("vllm-router", "vllm-router==0.1.17", _router("vllm_router.launch_router")),
        Peer("sglang-router", "sglang-router==0.3.2", _router("sglang_router.launch_router")),
        Peer(
            "litellm", "litellm[proxy]==1.106.12", _litellm, loads=frozenset({"whole"}),  # its price list must know the name, so the servers must know "gpt-4o-mini"
            path="/health/liveliness",
            environment={"LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"},
        ),
    )
}  # fmt: skip
