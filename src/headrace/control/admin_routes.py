"""What is a path of the admin port? A row of a table: who may ask, what may be asked, and what answers.

A path that stands in no table doesn't exist, and a row can't be written without its role.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec

from headrace.core.roles import Role

BODY_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may come to the admin port.

    Attributes:
        actor: Who it is, as the audit log says it.
    """

    actor: str
    role: Role


@dataclass(frozen=True, slots=True)
class Asked:
    """One request whose caller may ask it, and whose names are all known.

    Attributes:
        named: The parts of the path that have a name.
        query: What follows the path.
        fields: The members of its body.
    """

    caller: Caller
    named: Mapping[str, str]
    query: Mapping[str, str]
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer in JSON, unless its type says otherwise."""

    body: bytes
    status: int = 200
    content_type: str = "application/json"


class Turn(Enum):
    """What an answer waits for; for each of them one request at a time does, so that no other's can be kept waiting.

    IDENTITY: the store of tenants and keys.
    GATEWAY: the gateway's loop.
    LEDGER: sums over what was used, which can take seconds.
    DEPLOYMENTS: what a deployment names is looked up, which can take minutes.
    CONFIGURATION: another version of it is put in force everywhere, which can take seconds.
    """

    IDENTITY = "identity"
    GATEWAY = "gateway"
    LEDGER = "ledger"
    DEPLOYMENTS = "deployments"
    CONFIGURATION = "configuration"


@dataclass(frozen=True, slots=True)
class AdminRoute:
    """One method of one path.

    Attributes:
        path: `{name}` stands for one part of it.
        role: The lowest that may ask.
        answer: Runs on a thread of the admin port. Raises HeadraceError; a ConfigError is the caller's mistake.
        query, fields: The names that are known.
        guarded: Fields that need a higher role than the rest of it.
        body_bytes_max: Of its body.
    """

    method: str
    path: str
    role: Role
    answer: Callable[[Asked], Reply]
    query: tuple[str, ...] = ()
    fields: tuple[str, ...] = field(default=())
    guarded: Mapping[str, Role] = field(default_factory=dict)
    turn: Turn = Turn.IDENTITY
    body_bytes_max: int = BODY_BYTES_MAX


def reply(value: Any, *, status: int = 200) -> Reply:
    """A value as JSON."""
    return Reply(msgspec.json.encode(value), status)
