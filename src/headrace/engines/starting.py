"""What is asked of an engine that we start, and with which command is it started? The words that all kinds share."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.core.deployments import EngineArgs
from headrace.core.errors import ConfigError
from headrace.core.fleet import Task


@dataclass(frozen=True, slots=True)
class Asked:
    """One engine, as its deployment describes it.

    Attributes:
        model_name: The name that it answers to.
        model_path: File or folder of the weights; "" for an engine without any.
        slots: Requests that it runs at once.
        context_tokens: Prompt plus output of one request; 0 leaves it to the model.
        threads: 0 leaves it to the engine.
        draft_path, tokenizer_path, template_path: Of the small model that guesses ahead, and of what isn't taken from the
            weights; "" for none.
        program: Where it isn't found by its usual name.
        args: What the deployment's file says beyond these.
    """

    model_name: str
    model_path: str
    task: Task
    slots: int
    context_tokens: int
    threads: int = 0
    draft_path: str = ""
    tokenizer_path: str = ""
    template_path: str = ""
    program: str = ""
    args: EngineArgs = field(default_factory=EngineArgs)


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
        ready_path: What answers 200 once it is ready, and 503 when it no longer is.
        takes_key: It can be made to ask its callers for a key that others on this machine can't read.
        takes_name: It answers to the name that it is given.
        slots: How many requests it runs at once where nobody says.
    """

    name: str
    dialect: str
    command: Callable[[Asked, int, str], Command]
    speaks_reports: bool = False
    ready_path: str = "/health"
    takes_key: bool = True
    takes_name: bool = True
    slots: int = 4

    def new_key(self) -> str:
        """A key that only this engine and the gateway know; "" where it takes none."""
        return secrets.token_urlsafe(32) if self.takes_key else ""

    def refuse_unsuitable(self, asked: Asked) -> None:
        """Raises ConfigError as `command` does: what a plan asks before anything is started."""
        self.command(asked, 1, "key")


Translation = Callable[[Any], Sequence[str]]


def flag(name: str) -> Translation:
    """An option with the value behind it."""
    return lambda value: (name, f"{value:g}" if isinstance(value, float) else str(value))


@dataclass(frozen=True, slots=True)
class Words:
    """How one kind says what stands in `revision.args`.

    Attributes:
        flags: For each argument that it has, its own options.
        lacks: For each that it hasn't, why.
    """

    kind: str
    flags: Mapping[str, Translation]
    lacks: Mapping[str, str] = field(default_factory=dict)

    def said(self, args: EngineArgs) -> list[str]:
        """The engine's options for all that is given, `flags` last. Raises ConfigError that names what it lacks."""
        options: list[str] = []
        for known in msgspec.structs.fields(EngineArgs):
            value = getattr(args, known.name)
            if value is None or known.name == "flags":
                continue
            translation = self.flags.get(known.name)
            if translation is None:
                reason = self.lacks.get(known.name, "only the scripted engine has it")
                raise ConfigError(f"revision.args.{known.name}: {self.kind}: {reason}")
            try:
                options += translation(value)
            except ValueError as error:
                raise ConfigError(f"revision.args.{known.name}: {self.kind}: {error}") from None
        return options + self._checked(args.flags)

    def _checked(self, flags: tuple[str, ...]) -> list[str]:
        for each in flags:
            if each.split("=")[0] in OURS:
                raise ConfigError(f"revision.args.flags: {each.split('=')[0]} is ours to say")
        return list(flags)


# Where it listens, under which name and with which key: an engine that is told otherwise is never found, or found by others.
OURS = frozenset(
    {
        "--host",
        "--hostname",
        "--port",
        "-p",
        "--api-key",
        "--api-key-file",
        "--alias",
        "-a",
        "--served-model-name",
    }
)


def one_of(**words: str) -> Callable[[str], str]:
    """An engine's word for each of ours. Raises ValueError, with what it takes, for any other."""

    def word(ours: str) -> str:
        if ours not in words:
            raise ValueError(f"{ours!r} is none of {', '.join(words)}")
        return words[ours]

    return word
