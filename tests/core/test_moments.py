"""Are moments written and read alike, and never as later than they are?"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import moments


@given(st.floats(0, 4e9))
def test_a_moment_comes_back_to_the_millisecond_and_never_later(unix_s: float) -> None:
    read = moments.unix_s(moments.utc(unix_s))
    assert -1e-6 <= unix_s - read < 0.0011


@pytest.mark.parametrize(
    ("text", "unix_s"),
    [
        ("2026-11-01", 1793491200.0),
        ("2026-11-01T12:00Z", 1793534400.0),
        ("2026-11-01T12:00", 1793534400.0),
        ("2026-11-01T12:00+02:00", 1793527200.0),
    ],
)
def test_a_moment_is_utc_unless_it_says_otherwise(text: str, unix_s: float) -> None:
    assert moments.unix_s(text) == unix_s


def test_what_is_no_moment_is_refused() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        moments.unix_s("yesterday")
