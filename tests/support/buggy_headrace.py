"""headrace with bugs that a request can call for by its field `bug`; run it instead of `headrace`.

Bugs are what nobody foresaw, so no option of the service makes one: they are put into its code from outside.
"""

from collections import Counter
from typing import Any

from headrace.__main__ import run
from headrace.core.request import InferenceRequest
from headrace.gateway.dispatch import Dispatch
from headrace.gateway.reception import RelayReception
from headrace.gateway.upstream import Upstream

EVENTS = 4


class Bug(Exception):
    """Not one of the service's own errors."""


def calls_for(request: InferenceRequest, stage: str) -> bool:
    return b'"bug":"%b"' % stage.encode() in request.canonical


def install() -> None:
    enter, send, pass_on = Dispatch.enter, Upstream._send, RelayReception._pass_on
    passed_on: Counter[Any] = Counter()

    def buggy_enter(self: Any, ticket: Any, request: Any) -> Any:
        if calls_for(request, "unstarted"):
            raise Bug
        return enter(self, ticket, request)

    async def buggy_send(self: Any, attempt: Any, *rest: Any) -> None:
        if calls_for(attempt.request, "working"):
            raise Bug
        await send(self, attempt, *rest)

    def buggy_pass_on(self: Any, events: list[bytes], now_s: float) -> None:
        """After EVENTS events the walk goes on as if the answer were over, and has no outcome for it."""
        pass_on(self, events, now_s)
        if calls_for(self._request, "answering"):
            passed_on[self] += len(events)
            if passed_on[self] >= EVENTS:
                self.over.set()

    for place, name, bug in (
        (Dispatch, "enter", buggy_enter),
        (Upstream, "_send", buggy_send),
        (RelayReception, "_pass_on", buggy_pass_on),
    ):
        setattr(place, name, bug)


if __name__ == "__main__":
    install()
    run()
