"""Which paths does the public port have? Matched exactly, byte by byte; only a model's name is decoded."""

from dataclasses import dataclass
from enum import Enum, auto
from urllib.parse import unquote

from headrace.core.request import Endpoint


@dataclass(frozen=True, slots=True)
class InferenceRoute:
    """A POST that becomes an inference request."""

    endpoint: Endpoint
    body_bytes_max: int


@dataclass(frozen=True, slots=True)
class WebSocketRoute:
    """A GET that becomes a WebSocket, whose messages are requests."""

    requests: InferenceRoute
    body_bytes_max: int = 0


class Info(Enum):
    """What a GET can ask for; the first two need no key."""

    LIVEZ = auto()
    READYZ = auto()
    MODELS = auto()
    MODEL = auto()
    CONTRACT = auto()
    OPENAPI = auto()


@dataclass(frozen=True, slots=True)
class InfoRoute:
    """A GET that is answered at once.

    Attributes:
        name: The model's name where the path ends in one.
    """

    kind: Info
    name: str = ""
    body_bytes_max: int = 0


Route = InferenceRoute | InfoRoute | WebSocketRoute

LIVEZ = InfoRoute(Info.LIVEZ)
READYZ = InfoRoute(Info.READYZ)
_MODELS = InfoRoute(Info.MODELS)
_OPENAPI = InfoRoute(Info.OPENAPI)
_MODEL_PREFIX = b"/v1/models/"
_CONTRACT_SUFFIX = b"/contract"


def open_to_all(method: bytes, path: bytes) -> InfoRoute | None:
    """The route of the two paths that answer without a key, or None."""
    if method == b"GET":
        if path == b"/livez":
            return LIVEZ
        if path == b"/readyz":
            return READYZ
    return None


class RouteTable:
    """The routes that need a key."""

    def __init__(self, *, body_bytes_max: int) -> None:
        self._posts = {
            endpoint.value.encode(): InferenceRoute(endpoint, body_bytes_max) for endpoint in Endpoint
        }
        self._websockets = {
            path: WebSocketRoute(route)
            for path, route in self._posts.items()
            if route.endpoint is not Endpoint.EMBEDDINGS
        }

    def find(self, method: bytes, path: bytes, *, is_websocket: bool = False) -> Route | None:
        if method == b"POST":
            return self._posts.get(path)
        if method == b"GET":
            if is_websocket and path in self._websockets:
                return self._websockets[path]
            if path == b"/v1/models":
                return _MODELS
            if path == b"/openapi.json":
                return _OPENAPI
            if path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
                return _of_model(path[len(_MODEL_PREFIX) :])
        return None


def _of_model(rest: bytes) -> InfoRoute:
    """A model whose name ends in `/contract` is asked for with that slash as `%2F`."""
    name = rest.removesuffix(_CONTRACT_SUFFIX)
    kind = Info.CONTRACT if name and name != rest else Info.MODEL
    return InfoRoute(kind, name=unquote((name or rest).decode("ascii", "replace")))
