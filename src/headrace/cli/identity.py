"""What do the commands about tenants and keys share? The store, the wait for a change to be in force, and a word beside it."""

import argparse
import os
import pwd
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headrace import config
from headrace.cli import status
from headrace.core.clock import SystemClock
from headrace.core.errors import HeadraceError
from headrace.stores import directory, tenants
from headrace.stores.tenants import TenantStore

CLOCK = SystemClock()
IN_FORCE_LIMIT_S = 5.0


@contextmanager
def store(arguments: argparse.Namespace, *, must_exist: bool) -> Iterator[TenantStore]:
    """The store of the data directory on the command line."""
    data = config.data_directory(arguments.data)
    opened = tenants.open_tenants(data, clock=CLOCK, actor=actor(), must_exist=must_exist)
    try:
        yield opened
    finally:
        opened.close()


def actor() -> str:
    """Who runs this command, as the audit log names people: by the user of the operating system, whatever the environment
    says."""
    number = os.getuid()
    try:
        return f"cli:{pwd.getpwuid(number).pw_name}"
    except KeyError:  # a container's user may have no name
        return f"cli:{number}"


def in_force(arguments: argparse.Namespace, revision: int) -> str:
    """Waits until the running service, if there is one, goes by the change; says so, or what the operator can expect."""
    data = config.data_directory(arguments.data)
    if not directory.is_in_use(data):
        return ""
    until_s = CLOCK.now_s() + IN_FORCE_LIMIT_S
    while CLOCK.now_s() < until_s:
        try:
            _, answer = status.fetch(data)
        except HeadraceError:
            # What is left of a service that was killed: the next one reads the change when it starts.
            return ""
        if answer.get("keys", {}).get("revision", 0) >= revision:
            return ", and the running service goes by it"
        time.sleep(0.02)
    return f", but the running service has not confirmed it within {IN_FORCE_LIMIT_S:.0f} s; see: headrace status"


def note(text: str) -> None:
    """A word to the person, beside what a script takes from standard output."""
    print(text, file=sys.stderr, flush=True)
