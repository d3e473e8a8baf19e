"""Which server, which model, and with which key? Options that commands which ask a server from outside share.

Without a URL it is the service that runs on the data directory, asked with the key that it has for asking itself.
"""

import argparse
from pathlib import Path
from typing import Any

from headrace import config
from headrace.app import system_key
from headrace.cli import status
from headrace.core.errors import ConfigError, HeadraceError
from headrace.evidence.target import Target

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--url`, `--model`, `--key`, `--ca`, `--certificate`."""
    parser.add_argument(
        "--url",
        metavar="URL",
        help="an OpenAI-compatible server (default: the service that runs on the data directory)",
    )
    parser.add_argument(
        "--model", metavar="M", help="the model, as the server calls it (default: the service's first)"
    )
    parser.add_argument(
        "--key",
        default="",
        metavar="REF",
        help="the key: env:NAME or file:PATH (default: the one that the running service asks itself with)",
    )
    parser.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="PEM file of the authorities that may sign the server's certificate (default: those of the system)",
    )
    parser.add_argument(
        "--certificate",
        default="",
        metavar="FILE",
        help="PEM file with the server's own certificate: it is trusted and no other, whatever its name is",
    )


def chosen(arguments: argparse.Namespace, *, task: str = "chat") -> Target:
    """What the options name. Raises ConfigError."""
    key = config.resolve_secret(arguments.key, key="--key") if arguments.key else ""
    if not arguments.url:
        return of_service(
            config.data_directory(arguments.data),
            model=arguments.model,
            key=key,
            ca_file=arguments.ca,
            certificate=arguments.certificate,
            task=task,
        )
    if not arguments.model:
        raise ConfigError("--model says which model of that server is meant")
    return Target(arguments.url, arguments.model, key, arguments.ca, arguments.certificate)


def of_service(
    data: Path,
    *,
    model: str | None = None,
    key: str = "",
    ca_file: str = "",
    certificate: str = "",
    task: str = "chat",
) -> Target:
    """A model of the service that runs there. Raises ConfigError, also where none runs: of a check nothing is known then."""
    try:
        service, now = status.fetch(data)
    except HeadraceError as error:
        raise ConfigError(str(error)) from error
    offered = [each["model"] for each in now["deployments"] if each["ready"] and task in each["tasks"]]
    name = model or next(iter(offered), "")
    if name.partition("@")[0] not in offered:
        there = f"there are {', '.join(offered)}" if offered else "none is ready"
        raise ConfigError(f"the service has no model {name!r} for {task} that is ready; {there}")
    if not key:
        try:
            key = system_key.read(data)
        except OSError as error:
            raise ConfigError(
                f"the key that the service asks itself with can't be read ({error.strerror}): name another with --key"
            ) from error
    return Target(url_of(service), name, key, ca_file, certificate)


def url_of(service: dict[str, Any]) -> str:
    """Where callers reach the service, by its own file."""
    host = _WILDCARDS.get(service["public_host"], service["public_host"])
    return f"{service['public_scheme']}://{host}:{service['public_port']}"
