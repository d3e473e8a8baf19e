"""`headrace up`: run the provider on this machine."""

import argparse
import contextlib
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from headrace import config
from headrace.app.data_plane import check_certificate
from headrace.app.process import keep_memory_out_of_dumps
from headrace.app.service import Service
from headrace.cli import common, models
from headrace.core.errors import ConfigError, leaves
from headrace.core.fleet import Task
from headrace.stores.directory import sole_user
from headrace.stores.registry import StoredModel, open_store

UPSTREAM_SLOTS = 64
WORKERS_MAX = 256


def add(commands: Any) -> None:
    parser = common.command(
        commands,
        "up",
        run,
        help="run the provider on this machine: gateway, controller and engines, or put it in front of running servers",
        example="headrace up --port 8000\n         headrace up --upstream http://127.0.0.1:8080",
    )
    parser.add_argument(
        "--config", metavar="FILE", help="headrace.toml (default: none, every value has a default)"
    )
    parser.add_argument("--host", metavar="H", help="address of the public port (default 127.0.0.1)")
    parser.add_argument("--port", metavar="P", help="public port (default 8000; 0 chooses a free one)")
    parser.add_argument(
        "--admin-port", metavar="P", help="admin port on loopback (default 9000; 0 chooses a free one)"
    )
    parser.add_argument(
        "--tls-certificate",
        metavar="FILE",
        help="PEM certificate with its chain: the public port speaks TLS. A changed file is in force within seconds",
    )
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, PEM, without a passphrase")
    parser.add_argument(
        "--upstream",
        metavar="URL",
        action="append",
        help="an OpenAI-compatible server that already runs; repeat it for replicas. Replaces the embedded engines",
    )
    parser.add_argument(
        "--upstream-slots",
        metavar="N",
        help=f"requests that each --upstream may get at once (default {UPSTREAM_SLOTS})",
    )
    parser.add_argument(
        "--upstream-ca",
        metavar="FILE",
        help="PEM file of the authorities that may sign the certificates of --upstream https://... "
        "(default: those of the system)",
    )
    parser.add_argument(
        "--workers",
        metavar="N",
        help="processes that serve the public port, for machines where one core is too little (default 1)",
    )
    parser.add_argument(
        "--log",
        metavar="FILE",
        help="where JSON log lines go; - is standard error (default DATA/logs/headrace.log)",
    )


def run(arguments: argparse.Namespace) -> int | None:
    settings, file = _asked(arguments)
    data = config.data_directory(arguments.data)
    if not settings.server.core_dumps:
        keep_memory_out_of_dumps()
    with sole_user(data):
        check_certificate(settings.server)  # before minutes of fetching models
        stored = _models(settings, data)
        log = _option(arguments.log, "log")
        log_to = None if log == "-" else Path(log) if log else data / "logs" / "headrace.log"

        async def serve() -> None:
            await Service(
                settings,
                data,
                models=stored,
                log_to=log_to,
                tell=_tell,
                make_key=_make_key(arguments.data),
                file=file,
                read=(lambda: _asked(arguments)) if common.settings_file(arguments) else None,
            ).run()

        try:
            uvloop.run(serve())
        except* ConfigError as errors:
            raise ConfigError(str(leaves(errors)[0])) from None
    return None


def _make_key(data: str | None) -> str:
    """The command that makes a first key, as it can be typed or pasted where this one was started."""
    started_as = Path(sys.argv[0])
    words = [str(started_as)]
    if started_as.name == "__main__.py":
        words = [sys.executable, "-m", "headrace"]
    elif shutil.which(started_as.name) == str(started_as):
        words = [started_as.name]
    elif started_as.is_relative_to(Path.cwd()):
        words = [str(started_as.relative_to(Path.cwd()))]
    words += ["keys", "create", "--tenant", "demo"]
    return shlex.join([*words, "--data", data] if data else words)


def _tell(line: str) -> None:
    # Whoever read this may have gone (`headrace up | head -3`, a closed terminal); the service goes on without.
    with contextlib.suppress(OSError):
        print(line, flush=True)


def _option(flag: str | None, name: str) -> str | None:
    return flag if flag is not None else config.environment(name)


def _number(flag: str | None, name: str, *, default: int, least: int = 0, most: int) -> int:
    text = _option(flag, name)
    if text is None:
        return default
    if not text.isdecimal() or not least <= int(text) <= most:
        given = f"--{name}" if flag is not None else config.variable(name)
        raise ConfigError(f"{given} must be a whole number from {least} to {most}, got {text!r}")
    return int(text)


def _asked(arguments: argparse.Namespace) -> config.Asked:
    """What the file says, and that with environment and flags laid over it."""
    file = common.settings(arguments)
    return config.Asked(_overlaid(file, arguments), file)


def _overlaid(settings: config.Config, arguments: argparse.Namespace) -> config.Config:
    server = msgspec.structs.replace(
        settings.server,
        host=_option(arguments.host, "host") or settings.server.host,
        port=_number(arguments.port, "port", default=settings.server.port, most=65535),
        admin_port=_number(
            arguments.admin_port, "admin-port", default=settings.server.admin_port, most=65535
        ),
        tls_certificate=_option(arguments.tls_certificate, "tls-certificate")
        or settings.server.tls_certificate,
        tls_key=_option(arguments.tls_key, "tls-key") or settings.server.tls_key,
        workers=_number(
            arguments.workers, "workers", default=settings.server.workers, least=1, most=WORKERS_MAX
        ),
    )
    urls = arguments.upstream or (config.environment("upstream") or "").split()
    slots = _number(
        arguments.upstream_slots, "upstream-slots", default=UPSTREAM_SLOTS, least=1, most=1_000_000
    )
    settings = msgspec.structs.replace(settings, server=server)
    if urls:
        ca_file = _option(arguments.upstream_ca, "upstream-ca") or ""
        if arguments.upstream_ca and not any(url.startswith("https:") for url in urls):
            raise ConfigError("--upstream-ca is for upstreams with https://, and there is none")
        upstreams = tuple(
            config.UpstreamConfig(url=url, slots=slots, ca_file=ca_file if url.startswith("https:") else "")
            for url in urls
        )
        settings = msgspec.structs.replace(settings, upstreams=upstreams)
    if settings.upstreams:
        engine = msgspec.structs.replace(settings.engine, chat_model="", embedding_model="")
        settings = msgspec.structs.replace(settings, engine=engine)
    return settings


def _models(settings: config.Config, data: Path) -> list[StoredModel]:
    """The embedded engines' models, pulled if they aren't here yet."""
    store = open_store(data, settings.models)
    store.collect()
    found = []
    for name, task in (
        (settings.engine.chat_model, Task.CHAT),
        (settings.engine.embedding_model, Task.EMBEDDINGS),
    ):
        if not name:
            continue
        model = store.get(name)
        if model is None:
            print(f"pulling      {name} (once)", file=sys.stderr, flush=True)
            model = store.pull(name, progress=models.progress())
        if model.task is not task:
            raise ConfigError(
                f"{name} is a model for {model.task.value}, and is set where one for {task.value} belongs"
            )
        found.append(model)
    return found
