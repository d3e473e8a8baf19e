"""Which lines does every answer of the walk have? The model's revision, the configuration's version, what is left of limits."""

from typing import Any

from headrace.core.fleet import Deployment
from headrace.core.request import InferenceRequest
from headrace.gateway.budgets import Reservations
from headrace.gateway.dispatch import Dispatch

_REVISION = b"x-headrace-model-revision: %b\r\nx-headrace-config-version: %d\r\n"
_REQUESTS = b"x-ratelimit-limit-requests: %d\r\nx-ratelimit-remaining-requests: %d\r\nx-ratelimit-reset-requests: %.3fs\r\n"
_TOKENS = (
    b"x-ratelimit-limit-tokens: %d\r\nx-ratelimit-remaining-tokens: %d\r\nx-ratelimit-reset-tokens: %.3fs\r\n"
)


class AnswerHeaders:
    """State: `_revisions`, the lines of those that were asked for since `clear`, by requests of `_config_version`."""

    def __init__(self, dispatch: Dispatch, reservations: Reservations[Any], *, config_version: int) -> None:
        self._dispatch = dispatch
        self._reservations = reservations
        self._revisions: dict[str, bytes] = {}
        self._config_version = config_version

    def clear(self) -> None:
        """Other revisions may be offered from now on."""
        self._revisions.clear()

    def go_by(self, config_version: int) -> None:
        """That is the version of most requests from now on; older ones are still answered."""
        self._config_version = config_version
        self._revisions.clear()

    def lines(self, request: InferenceRequest, deployment: Deployment) -> bytes:
        """Header lines, each with its end."""
        version = request.config_version
        revision = self._revisions.get(deployment.revision) if version == self._config_version else None
        if revision is None:
            revision = _REVISION % (deployment.revision.encode(), version)
            if version == self._config_version:
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
