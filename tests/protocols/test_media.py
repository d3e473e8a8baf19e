"""T44: whatever in a message is more than text is found, checked if it is inline, and picked out if it is a URL."""

import json
from collections.abc import Callable
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import InvalidRequest
from headrace.core.fleet import Deployment, Task
from headrace.core.request import Endpoint
from headrace.protocols import media, openai, pictures
from tests.support.pictures import data_url, gif, jpeg, png, webp_extended, webp_lossless, webp_lossy

MAKERS = [png, gif, jpeg, webp_lossy, webp_lossless, webp_extended]
URL = "https://a.example/x"


def body(*parts: Any, **fields: Any) -> bytes:
    return json.dumps(
        {"model": "m", "messages": [{"role": "user", "content": list(parts)}], **fields}
    ).encode()


def parse(*parts: Any) -> openai.ParsedBody:
    return openai.parse_body(Endpoint.CHAT_COMPLETIONS, body(*parts))


def refused_at(*parts: Any) -> str:
    with pytest.raises(InvalidRequest) as refused:
        parse(*parts)
    assert refused.value.param is not None
    return refused.value.param


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


# Pictures


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("size", [(1, 1), (640, 480), (10_000, 10_000), (16_383, 16_383)])
def test_the_size_is_read_from_the_header(make: Callable[[int, int], bytes], size: tuple[int, int]) -> None:
    assert pictures.dimensions(make(*size)) == size
    assert pictures.dimensions(make(*size) + b"\0" * 1000) == size


@pytest.mark.parametrize("make", MAKERS)
def test_a_header_that_is_cut_tells_no_size(make: Callable[[int, int], bytes]) -> None:
    whole = make(640, 480)
    for length in range(len(whole)):
        assert pictures.dimensions(whole[:length]) in (None, (640, 480))
    assert pictures.dimensions(whole[:9]) is None


@given(
    data=st.binary(max_size=60),
    start=st.sampled_from([b"", *(make(5, 5)[:12] for make in MAKERS), b"\xff\xd8\xff"]),
)
def test_no_bytes_raise_an_exception(data: bytes, start: bytes) -> None:
    pictures.dimensions(start + data)


def test_what_is_no_picture_has_no_size() -> None:
    for data in (
        b"",
        b"<svg/>",
        b"BM" + b"\0" * 60,
        b"RIFF\0\0\0\0WEBPVP8?" + b"\0" * 20,
        b"\xff\xd8\xff\xda\x00\x02",
        b"\xff\xd8\xff\xe0\x00\x00ab",
    ):
        assert pictures.dimensions(data) is None


# Inline


@pytest.mark.parametrize("make", MAKERS)
def test_inline_media_goes_through_as_it_came(make: Callable[[int, int], bytes]) -> None:
    url = data_url(make(100, 100), content_type="image/webp")
    parsed = parse({"type": "text", "text": "what is this: http://a.example/?"}, image(url))
    assert (parsed.media_at, parsed.remote_media) == ("messages[0].content[1].image_url.url", ())
    assert json.loads(b"{" + parsed.canonical)["messages"][0]["content"][1] == image(url)


def test_sound_and_files_go_through_too() -> None:
    parts = [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_data": data_url(b"%PDF", content_type="application/pdf"), "filename": "a:b.pdf"}},
        {"type": "video_url", "video_url": {"url": data_url(b"x", content_type="video/mp4")}},
        {"type": "audio_url", "audio_url": {"url": data_url(b"x", content_type="audio/ogg;codecs=opus")}},
        {"type": "tool_result", "content": "http://a.example/ is a text here", "tool_use_id": "x"},
        {"type": "thinking", "thinking": "file:///etc/passwd is a text, too"},
        {"type": "custom", "anything": ["data", {"deeper": "note: text"}], "number": 5},
    ]  # fmt: skip
    assert parse(*parts).remote_media == ()


def test_plain_text_has_no_media() -> None:
    parsed = openai.parse_body(Endpoint.CHAT_COMPLETIONS, body({"type": "text", "text": "x"}))
    assert (parsed.media_at, parsed.remote_media) == ("", ())


REFUSED: list[tuple[Any, str | None]] = [
    (image(data_url(png(10_000, 10_000))), "image_url.url"), (image(data_url(b"<svg/>")), "image_url.url"),
    (image(data_url(png(1, 1), content_type="image/svg+xml")), "image_url.url"), (image("data:image/png;base64,!!!!"), "image_url.url"),
    (image("data:image/png;base64,AAA"), "image_url.url"), (image("data:image/png,raw"), "image_url.url"), (image("data:,x"), "image_url.url"),
    (image("data:image/png;base64,\u00fc"), "image_url.url"), (image("file:///etc/passwd"), "image_url.url"), (image("FILE:///etc/passwd"), "image_url.url"),
    (image("/etc/passwd"), "image_url.url"), (image(""), "image_url.url"), (image("s3://bucket/key"), "image_url.url"), (image(" http://a.example/"), "image_url.url"),
    ({"type": "image_url", "image_url": "gopher://x"}, "image_url"), ({"image_url": "ftp://x"}, "image_url"),
    ({"type": "input_audio", "input_audio": {"data": "http://127.0.0.1/"}}, "input_audio.data"), ({"type": "file", "file": {"file_data": "file:///x"}}, "file.file_data"),
    ({"type": "video", "video": ["http://127.0.0.1/"]}, None), ({"type": "video", "video": ["frame.png"]}, "video[0]"), ({"type": "image", "image": " file:///x"}, "image"),
    ({"type": "x", "x": {"source": {"type": "url", "IMAGE_URI": "ssh://x"}}}, "x.source.IMAGE_URI"),
]  # fmt: skip


@pytest.mark.parametrize(("part", "where"), REFUSED, ids=range(len(REFUSED)))
def test_what_is_neither_inline_nor_a_url_is_refused_at_its_place(part: Any, where: str | None) -> None:
    """A `data:` URL that isn't one, a picture that isn't one, another scheme, and a URL where content belongs."""
    if where is None:
        assert len(parse(part).remote_media) == 1
    else:
        assert refused_at(part) == f"messages[0].content[0].{where}"


def test_parts_and_their_depth_are_bounded() -> None:
    refused_at(*[image(data_url(png(1, 1)))] * (media.PARTS_MAX + 1))
    deep: Any = "x"
    for _ in range(media.DEPTH_MAX + 2):
        deep = {"a": deep}
    refused_at({"type": "x", "x": deep})


# URLs


def test_urls_are_picked_out_and_what_is_fetched_takes_their_place() -> None:
    parts = [
        image(URL),
        {"type": "text", "text": f"{URL} headrace-media-0"},
        {"type": "image_url", "image_url": "HTTP://b.example/"},
        {"type": "audio_url", "audio_url": {"url": URL}},
        {"type": "file", "file": {"file_url": URL}},
    ]
    parsed = parse(*parts)
    assert [(item.url, item.kind) for item in parsed.remote_media] == [
        (URL, "image"), ("HTTP://b.example/", "image"), (URL, "audio"), (URL, "file")
    ]  # fmt: skip
    assert b"a.example/x" in parsed.canonical, "the text is the caller's"
    contents = [
        ("image/png", b"AAAA"),
        ("image/gif", b"BBBB"),
        ("audio/ogg", b"CCCC"),
        ("text/plain", b"DDDD"),
    ]
    got = json.loads(b"{" + media.inlined(parsed.canonical, parsed.remote_media, contents))["messages"][0][
        "content"
    ]
    assert got == [
        image("data:image/png;base64,AAAA"), parts[1], {"type": "image_url", "image_url": "data:image/gif;base64,BBBB"},
        {"type": "audio_url", "audio_url": {"url": "data:audio/ogg;base64,CCCC"}}, {"type": "file", "file": {"file_url": "data:text/plain;base64,DDDD"}},
    ]  # fmt: skip


def test_a_url_is_bounded() -> None:
    """T14: one of megabytes would be more than the parser's process may say of a body, and ended each that read it."""
    longest = URL + "x" * (media.URL_LENGTH_MAX - len(URL))
    assert [item.url for item in parse(image(longest)).remote_media] == [longest]
    assert refused_at(image(longest + "x")) == "messages[0].content[0].image_url.url"


def test_many_urls_cost_no_more_looks_at_the_body_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """T14: a digest of the whole body for each of 64 URLs took 36 ms of the event loop, or a second of the parser."""
    looks = 0

    def counted(*given: Any, **options: Any) -> Any:
        nonlocal looks
        looks += 1
        return blake2b(*given, **options)

    monkeypatch.setattr("headrace.protocols.media.hashlib.blake2b", counted)
    parsed = parse(*[image(URL)] * media.PARTS_MAX)
    assert len({item.start for item in parsed.remote_media}) == media.PARTS_MAX
    assert looks <= 2


def test_no_endpoint_hides_messages_from_the_check() -> None:
    """vLLM reads `messages` for embeddings, too."""
    for endpoint, field in ((Endpoint.EMBEDDINGS, "input"), (Endpoint.COMPLETIONS, "prompt")):
        parsed = openai.parse_body(endpoint, body(image(URL), **{field: "x"}))
        assert parsed.media_at
        assert [item.url for item in parsed.remote_media] == [URL]
        with pytest.raises(InvalidRequest):
            openai.parse_body(endpoint, body(image("file:///x"), **{field: "x"}))
        for odd in ("x", 5, ["x"], [{"content": ["x", 5]}], {"content": [image(URL)]}):
            asked = json.dumps({"model": "m", field: "x", "messages": odd}).encode()
            if endpoint is Endpoint.EMBEDDINGS:
                assert not openai.parse_body(endpoint, asked).media_at
            else:  # a salt may have to stand at their start
                with pytest.raises(InvalidRequest):
                    openai.parse_body(endpoint, asked)


def test_a_model_that_takes_text_only_says_so() -> None:
    deployment = Deployment("m", "m", frozenset({Task.CHAT}), "unpinned", takes_media=False)
    openai.check_against(deployment, parse({"type": "text", "text": "x"}))
    for url in (URL, data_url(png(1, 1))):
        with pytest.raises(InvalidRequest, match="text only") as refused:
            openai.check_against(deployment, parse(image(url)))
        assert refused.value.param == "messages[0].content[0].image_url.url"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["x", URL, "file:///x", "data:x", data_url(png(1, 1)), "//x", "a:b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["url", "image_url", "data", "text", "type", "content", "x"]), inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(
    parts=st.lists(
        st.dictionaries(
            st.sampled_from(["image_url", "video", "text", "x", "file", "url"]), JSON, max_size=3
        ),
        max_size=3,
    )
)
def test_no_url_is_left_for_an_engine_to_fetch(parts: list[dict[str, Any]]) -> None:
    try:
        parsed = parse(*parts)
    except InvalidRequest:
        return
    left = json.loads(b"{" + parsed.canonical)["messages"][0]["content"]
    contents = [("image/png", b"AAAA")] * len(parsed.remote_media)
    assert media.inlined(parsed.canonical, parsed.remote_media, contents)

    def check(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                if key not in ("text", "type"):
                    check(inner, key)
        elif isinstance(value, list):
            for inner in value:
                check(inner, name)
        elif isinstance(value, str) and name != "content":
            assert not value.startswith(("http", "file"))

    for part in left:
        check(part, "")
