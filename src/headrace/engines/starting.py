"""What is asked of an engine that we start, and with which command is it started? The words that all kinds share."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.core.fleet import Task


@dataclass(frozen=True, slots=True)
class Asked:
    """One engine, as its deployment describes it.

    Attributes:
        model_name: The name that it answers to.
        model_path: File or folder of the weights; "" for an engine without any.
        slots: Requests that it runs at once.
        context_tokens: Prompt plus output of one request.
        threads: 0 leaves it to the engine.
        args: What the deployment's file says in `revision.args` beyond these.
    """

    model_name: str
    model_path: str
    task: Task
    slots: int
    context_tokens: int
    threads: int = 0
    args: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Command:
    """How one engine is started.

    Attributes:
        arguments: Program first. Everybody on the machine can read them, so they hold no secret.
        settings: One line for its standard input.
        environment: Added to ours; only its user can read it.
    """

    arguments: tuple[str, ...]
    settings: str = field(default="", repr=False)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of engine that we can start.

    Attributes:
        dialect: The row of engines/openai_compatible.py by which the gateway speaks to it.
        command: How it is started on that port (0 where it takes one by itself) with that key. Raises ConfigError, with
            the argument and the reason, for what it can't do.
        speaks_reports: It says on its standard output how far it is (engines/child.py); else its port is asked.
        ready_path: What answers 200 once it is ready, where it doesn't speak reports.
        takes_key: It can be made to ask its callers for a key.
    """

    name: str
    dialect: str
    command: Callable[[Asked, int, str], Command]
    speaks_reports: bool = False
    ready_path: str = "/health"
    takes_key: bool = True

    def new_key(self) -> str:
        """A key that only this engine and the gateway know; "" where it takes none."""
        return secrets.token_urlsafe(32) if self.takes_key else ""
