"""What of an engine's own error the caller gets to see."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols import answers


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("plain text", (500, "plain text")),
        ({"message": "m"}, (500, "m")),
        ({"message": "m", "code": 429}, (429, "m")),
        ({"message": "m", "code": "404"}, (404, "m")),
        ({"message": "m", "code": "context_length_exceeded"}, (500, "m")),
        ({"message": "m", "code": 200}, (500, "m")),
        ({"message": "m", "code": 600}, (500, "m")),
        ({"message": "m", "code": True}, (500, "m")),
        ({"message": "m", "code": "9" * 5000}, (500, "m")),
        ({"message": {"deep": 1}}, (500, "")),
        ({}, (500, "")),
        ([1], (500, "")),
        (5, (500, "")),
    ],
)
def test_an_error_object_of_any_shape_gives_a_status_and_a_message(
    error: Any, expected: tuple[int, str]
) -> None:
    """T36."""
    assert answers.fault_of(error, status=500) == answers.UpstreamFault(*expected)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error": {"message": "m", "code": 400}}', "m"),
        (b'{"error": "m"}', "m"),
        (b'{"message": "m", "code": 400}', "m"),
        (b'{"detail": "m"}', ""),
        (b'["m"]', ""),
        (b'"m"', ""),
        (b"<html>m</html>", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
        (b"", ""),
    ],
)
def test_the_status_of_an_error_response_holds_whatever_its_body_says(body: bytes, message: str) -> None:
    """T36."""
    assert answers.fault_of_body(body, status=502) == answers.UpstreamFault(502, message)


SECRETS = st.sampled_from(
    [
        "0x7f3a9c001234",
        "http://10.0.0.5:8080/v1/chat?key=sk-1",
        "grpc://engine-3.internal",
        "10.1.2.3",
        "192.168.0.17:8000",
        "[::1]:8000",
        "[fe80::1]",
        "localhost:8080",
        "engine-3.internal:50051",
        "/usr/lib/python3/site-packages/engine.py",
        "/models/llama.gguf",
    ]
)
WORD = st.text(alphabet="abcxyz ,.'()", max_size=12)


@given(words=st.lists(st.tuples(WORD, SECRETS), min_size=1, max_size=8), last=WORD)
def test_addresses_urls_and_paths_are_taken_out_of_an_engines_message(
    words: list[tuple[str, str]], last: str
) -> None:
    """T36, T47: an engine's words may name machines and files that are nobody's business."""
    text = " ".join(f"{word} {secret} " for word, secret in words) + last
    safe = answers.safe_message(text)
    assert not any(secret in safe for _, secret in words)
    assert "[...]" in safe


@given(text=st.text(max_size=3000))
def test_a_message_is_short_and_printable(text: str) -> None:
    """T45: no control characters, no line ends, no escape sequences."""
    safe = answers.safe_message(text + "\r\n\x1b[31m\u2028\x00")
    assert len(safe) <= answers.MESSAGE_MAX
    assert safe.isprintable()
    assert safe == safe.strip()


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens must be at least 1, got 0",
        "This model's maximum context length is 4096 tokens: 5000 were given (4500 and/or 500).",
        "field 'messages[0].content' is missing; see line 3:14",
        "temperature 0.5 and top_p 1.0 can't both be set",
    ],
)
def test_words_for_the_caller_stay_as_they_are(text: str) -> None:
    assert answers.safe_message(text) == text


def test_a_hostile_message_is_cleaned_in_no_time() -> None:
    """No pattern here may need more than a pass: 100,000 characters of what each of them begins with."""
    for text in ("a.a-" * 25_000, "/" * 100_000, "1." * 50_000, "[:" * 50_000, "a:/" * 33_000):
        assert len(answers.safe_message(text)) <= answers.MESSAGE_MAX
