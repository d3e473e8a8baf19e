"""Which lines does every answer of the walk have? The model's revision, and what is left of limits and quotas."""

from typing import Any

from headrace.core.fleet import Deployment
from headrace.core.request import InferenceRequest
from headrace.gateway.budgets import Reservations
from headrace.gateway.dispatch import Dispatch

_REQUESTS = b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %.3fs\r\n"
_TOKENS = (
    b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %.3fs\r\n"
)


class AnswerHeaders:
    """State: `_revisions`, the lines of those that were asked for since `clear`."""

    def __init__(self, dispatch: Dispatch, reservations: Reservations[Any]) -> None:
        self._dispatch = dispatch
        self._reservations = reservations
        self._revisions: dict[str, bytes] = {}

    def clear(self) -> None:
        """Other revisions may be offered from now on."""
        self._revisions.clear()

    def lines(self, request: InferenceRequest, deployment: Deployment) -> bytes:
        """Header lines, each with its end."""
        revision = self._revisions.get(deployment.revision)
        if revision is None:
            revision = b"x-headrace-model-revision: " + deployment.revision.encode() + b"\r\n"
            self._revisions[deployment.revision] = revision
        principal = request.principal
        if self._reservations.has_quota(principal.tenant):
            revision += self._reservations.header(principal)
        if principal.has_levels:
            requests, tokens = self._dispatch.limit_views(principal, request.model)
            if tokens is not None:
                revision += _TOKENS % (tokens.limit, tokens.remaining, tokens.reset_s)
        else:
            requests = self._dispatch.limit_view(principal)
        if requests is None:
            return revision
        return revision + _REQUESTS % (requests.limit, requests.remaining, requests.reset_s)
