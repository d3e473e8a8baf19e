"""What else than text is in these messages? Pictures, sound and files: inline ones are checked, URLs are picked out.

An engine never gets a URL to fetch: it would fetch it from inside the operator's network.
"""

import binascii
import hashlib
import re
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from headrace.core.errors import InvalidRequest
from headrace.protocols import pictures

PARTS_MAX = 64  # parts with media in one request
PIXELS_MAX = 40_000_000  # of one picture, decoded
DEPTH_MAX = 8
URL_LENGTH_MAX = 4096  # URLs travel beside the body, where there is no room for megabytes

Kind = Literal["image", "audio", "video", "file"]

# What one may be, by its content type; a picture must also be what it says.
CONTENT_TYPES: dict[Kind, frozenset[str]] = {
    "image": frozenset({"image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp"}),
    "audio": frozenset(
        {
            "audio/wav", "audio/x-wav", "audio/wave", "audio/mpeg", "audio/mp3", "audio/mp4", "audio/m4a", "audio/x-m4a", "audio/aac", "audio/ogg",
            "audio/opus", "audio/flac", "audio/x-flac", "audio/webm",
        }
    ),
    "video": frozenset({"video/mp4", "video/mpeg", "video/webm", "video/quicktime", "video/ogg", "video/jpeg"}),
    "file": frozenset({"application/pdf", "application/json", "text/plain", "text/markdown", "text/csv"}),
}  # fmt: skip
# Names in a part that hold words for the model or labels, never the place of a file.
_TEXT_NAMES = frozenset(
    {"text", "type", "thinking", "reasoning", "refusal", "signature", "name", "title", "context", "detail", "format", "filename"}
    | {"cache_control", "tool_use_id", "id", "role", "media_type", "citations"}
)  # fmt: skip
_URL_ENDINGS = ("url", "uri", "image", "audio", "video", "images", "audios", "videos")
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]{0,30}):", re.IGNORECASE)
_LOOKS_LIKE_URL = re.compile(r"\s*(?:data:|file:|[a-z][a-z0-9+.-]{0,30}://)", re.IGNORECASE)
_DATA_URL = re.compile(
    r"data:(?P<type>[a-z]+/[a-z0-9.+-]+)(?:;[a-z0-9-]+=[a-z0-9.+_\"-]+)*;base64,", re.IGNORECASE
)
_PLACEHOLDER = "headrace-media-"


class RemoteMedia(msgspec.Struct, frozen=True):
    """A URL in a message, and where its text stands in the canonical JSON, quotes included.

    Attributes:
        at: The place in the request, for errors.
    """

    url: str
    kind: Kind
    at: str
    start: int = 0
    end: int = 0


class _Use(msgspec.Struct):
    """One text in a part that names or holds media; `holder[name]` is where it stands."""

    holder: Any
    name: str | int
    text: str
    kind: Kind
    at: str
    is_url_field: bool


def may_hold(messages: Any) -> bool:
    """Whether any message has parts; most have one text."""
    if type(messages) is list:
        for message in messages:
            if type(message) is dict and type(message.get("content")) is list:
                return True
    return False


def pick_out(messages: Any, *, body: bytes) -> tuple[str, list[RemoteMedia]]:
    """Checks the media in messages. Raises InvalidRequest.

    Returns where the first of it stands ("" if there is none), and the URLs. In the messages each URL is replaced by a
    text that stands nowhere else, since it has the digest of the body in it; `locate` finds them again.
    """
    first = mark = ""
    remote: list[RemoteMedia] = []
    count = 0
    for use in _uses(messages):
        first = first or use.at
        count += 1
        if count > PARTS_MAX:
            raise _wrong(use.at, f"more than {PARTS_MAX} pictures, sounds and files")
        if _check_inline(use):
            continue
        mark = mark or _mark(body)
        use.holder[use.name] = f"{mark}{len(remote)}"
        remote.append(RemoteMedia(use.text, use.kind, use.at))
    return first, remote


def locate(remote: list[RemoteMedia], canonical: bytes, *, body: bytes) -> tuple[RemoteMedia, ...]:
    """The same with their places in the canonical JSON."""
    found = []
    mark = _mark(body) if remote else ""
    for index, item in enumerate(remote):
        quoted = f'"{mark}{index}"'.encode()
        start = canonical.index(quoted)
        found.append(msgspec.structs.replace(item, start=start, end=start + len(quoted)))
    return tuple(found)


def inlined(canonical: bytes, remote: tuple[RemoteMedia, ...], contents: list[tuple[str, bytes]]) -> bytes:
    """The canonical JSON with the media in place of its URLs: content type and base64 of each."""
    pieces, at = [], 0
    for item, (content_type, base64) in sorted(
        zip(remote, contents, strict=True), key=lambda pair: pair[0].start
    ):
        pieces += [canonical[at : item.start], b'"data:', content_type.encode(), b";base64,", base64, b'"']
        at = item.end
    return b"".join([*pieces, canonical[at:]])


def check_content(kind: Kind, content_type: str, data: bytes, *, at: str) -> None:
    """Raises InvalidRequest for what is not of its kind, and for pictures that would fill an engine's memory."""
    if content_type not in CONTENT_TYPES[kind]:
        raise _wrong(at, f"{content_type[:100]} is no content type of a {kind} that is accepted here")
    if kind != "image":
        return
    size = pictures.dimensions(data)
    if size is None:
        raise _wrong(at, "the picture is no PNG, JPEG, GIF or WebP")
    if size[0] * size[1] > PIXELS_MAX:
        raise _wrong(at, f"the picture has {size[0]} x {size[1]} pixels; at most {PIXELS_MAX} are accepted")


def _uses(messages: Any) -> Iterator[_Use]:
    """The texts in messages that may be media: all in their parts but those under names for words."""
    for m, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, dict) else None
        for p, part in enumerate(content if isinstance(content, list) else ()):
            if not isinstance(part, dict):
                continue
            at = f"messages[{m}].content[{p}]"
            for name, value in part.items():
                if name not in _TEXT_NAMES:
                    kind = _kind(name)
                    yield from _texts(
                        part, name, value, label=name, kind=kind, at=f"{at}.{name[:64]}", depth=0
                    )


def _texts(
    holder: Any, name: str | int, value: Any, *, label: str, kind: Kind, at: str, depth: int
) -> Iterator[_Use]:
    """`label` is the name that a list's items go by."""
    if isinstance(value, str):
        is_url_field = label.lower().endswith(_URL_ENDINGS)
        if is_url_field or (label != "content" and _LOOKS_LIKE_URL.match(value)):
            yield _Use(holder, name, value, kind, at, is_url_field)
    elif isinstance(value, dict | list):
        if depth > DEPTH_MAX:
            raise _wrong(at, "nested too deeply")
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in list(inner):
            if key in _TEXT_NAMES:
                continue
            step = f"[{key}]" if isinstance(key, int) else f".{key[:64]}"
            inner_label = label if isinstance(key, int) else key
            yield from _texts(value, key, each, label=inner_label, kind=kind, at=at + step, depth=depth + 1)


def _kind(name: str) -> Kind:
    found: tuple[Kind, ...] = ("image", "audio", "video")
    return next((kind for kind in found if kind in name.lower()), "file")


def _check_inline(use: _Use) -> bool:
    """Whether it is inline, and good; False for a URL that someone must fetch. Raises InvalidRequest for all else."""
    match = _SCHEME.match(use.text)
    scheme = match["scheme"].lower() if match else ""
    if scheme == "data":
        _check_data_url(use)
        return True
    if scheme in ("http", "https") and use.is_url_field:
        if len(use.text) > URL_LENGTH_MAX:
            raise _wrong(use.at, f"the URL has more than {URL_LENGTH_MAX} characters")
        return False
    raise _wrong(use.at, "give an http or https URL in a field for URLs, or a `data:` URL")


def _check_data_url(use: _Use) -> None:
    match = _DATA_URL.match(use.text)
    if match is None:
        raise _wrong(use.at, "a `data:` URL has a content type and base64")
    try:
        data = binascii.a2b_base64(use.text[match.end() :], strict_mode=True)
    except (binascii.Error, ValueError):
        raise _wrong(use.at, "the `data:` URL is not valid base64") from None
    check_content(use.kind, match["type"].lower(), data, at=use.at)


def _mark(body: bytes) -> str:
    """What the placeholders of a request begin with. It costs a look at the whole body: once, not for every URL."""
    return f"{_PLACEHOLDER}{hashlib.blake2b(body, digest_size=16).hexdigest()}-"


def _wrong(at: str, what: str) -> InvalidRequest:
    place = at[:300]
    return InvalidRequest(f"{place}: {what}", param=place)
