"""headrace with bugs that a request can call for by its field `bug`; run it instead of `headrace`.

Bugs are what nobody foresaw, so no option of the service makes one: they are put into its code from outside.
"""

import sys
from collections import Counter
from typing import Any

from headrace.__main__ import run
from headrace.engines.http import ReplicaClient
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.reception import RelayReception

EVENTS = 4


class Bug(Exception):
    """Not one of the service's own errors."""


def install() -> None:
    enter, payload, pass_on = Dispatch.enter, ReplicaClient.payload, RelayReception._pass_on
    passed_on: Counter[Any] = Counter()

    def buggy_enter(self: Any, ticket: Any, request: Any) -> Any:
        if request.fields.get("bug") == "unstarted":
            raise Bug
        return enter(self, ticket, request)

    def buggy_payload(self: Any, path: str, body: bytes, **options: Any) -> Any:
        if b'"bug":"working"' in body:
            raise Bug
        return payload(self, path, body, **options)

    def buggy_pass_on(self: Any, events: list[bytes], now_s: float) -> None:
        """After EVENTS events the walk goes on as if the answer were over, and has no outcome for it."""
        pass_on(self, events, now_s)
        if self._request.fields.get("bug") == "answering":
            passed_on[self] += len(events)
            if passed_on[self] >= EVENTS:
                self.over.set()

    for place, name, bug in (
        (Dispatch, "enter", buggy_enter),
        (ReplicaClient, "payload", buggy_payload),
        (RelayReception, "_pass_on", buggy_pass_on),
    ):
        setattr(place, name, bug)


if __name__ == "__main__":
    install()
    sys.exit(run())
