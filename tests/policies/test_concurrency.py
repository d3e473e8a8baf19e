"""The limit finds what a server takes well, never leaves its bounds, and is not led by how long answers are."""

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from headrace.policies.concurrency import LATE_SLACK_S, WINDOW_MIN, ConcurrencyLimit

PROMPT_BYTES = 1000
MODEL = "m"


def drive(
    limit: ConcurrencyLimit, ttft_s: Callable[[int], float], *, requests: int, start_s: float = 0.0
) -> float:
    """Keeps the server as full as the limit allows; returns the time when it has answered that many."""
    now_s = start_s
    for _ in range(requests):
        now_s += 1.0
        limit.observe(
            ttft_s(limit.value),
            model=MODEL,
            prompt_bytes=PROMPT_BYTES,
            in_flight=limit.value,
            started_s=now_s,
            now_s=now_s,
        )
    return now_s


@given(
    slots=st.integers(1, 100),
    samples=st.lists(
        st.tuples(st.floats(0.0001, 100.0), st.integers(0, 10**10), st.integers(1, 200)), max_size=300
    ),
    resized=st.integers(1, 100),
)
def test_whatever_is_measured_the_limit_stays_between_one_and_the_slots(
    slots: int, samples: list[tuple[float, int, int]], resized: int
) -> None:
    limit = ConcurrencyLimit(slots)
    for now_s, (ttft_s, size, in_flight) in enumerate(samples):
        limit.observe(
            ttft_s, model=MODEL, prompt_bytes=size, in_flight=in_flight, started_s=now_s, now_s=now_s
        )
        assert 1 <= limit.value <= slots
    limit.resize(resized)
    assert 1 <= limit.value <= resized


def test_a_server_that_queues_beyond_eight_is_found_to_take_about_eight() -> None:
    def ttft_s(in_flight: int) -> float:
        return 0.2 + 0.5 * max(0, in_flight - 8)

    limit = ConcurrencyLimit(64)
    # It was seen unloaded once, which is what the rest is judged by.
    limit.observe(0.2, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=1, started_s=0.0, now_s=0.0)
    now_s = drive(limit, ttft_s, requests=3000)
    assert 4 <= limit.value <= 12
    drive(limit, lambda _: 0.2, requests=3000, start_s=now_s)
    assert limit.value == 64, "a server that has grown is found out"


def test_a_server_that_is_never_late_keeps_all_of_its_slots() -> None:
    limit = ConcurrencyLimit(64)
    drive(limit, lambda in_flight: 0.2 + 0.001 * in_flight, requests=1000)
    assert limit.value == 64


def test_delays_that_a_busy_machine_adds_by_itself_count_for_nothing() -> None:
    limit = ConcurrencyLimit(8)
    limit.observe(0.001, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=8, started_s=0.0, now_s=0.0)
    drive(limit, lambda _: LATE_SLACK_S, requests=1000)
    assert limit.value == 8


def test_long_prompts_are_compared_with_long_prompts() -> None:
    """A second for a prompt of a megabyte says nothing against a server that needs 10 ms for a kilobyte."""
    limit = ConcurrencyLimit(8)
    for now_s in range(40):
        for ttft_s, size in ((0.01, 1000), (1.0, 10**6), (1.1, 10**6), (1.2, 10**6)):
            limit.observe(ttft_s, model=MODEL, prompt_bytes=size, in_flight=8, started_s=now_s, now_s=now_s)
    assert limit.value == 8


def test_what_was_sent_under_another_limit_is_not_held_against_the_new_one() -> None:
    limit = ConcurrencyLimit(WINDOW_MIN)
    limit.observe(0.01, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=1, started_s=0.0, now_s=0.0)
    for _ in range(20 * WINDOW_MIN):
        limit.observe(
            9.0, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=WINDOW_MIN, started_s=0.0, now_s=9.0
        )
    assert limit.value == int(WINDOW_MIN * 0.8), "one step down for all that were sent before it"


def test_a_limit_that_was_never_reached_is_not_raised() -> None:
    limit = ConcurrencyLimit(WINDOW_MIN)
    limit.observe(0.01, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=1, started_s=0.0, now_s=0.0)
    now_s = drive(limit, lambda _: 9.0, requests=WINDOW_MIN - 1)
    lowered = limit.value
    for _ in range(10 * WINDOW_MIN):
        now_s += 1.0
        limit.observe(0.01, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=1, started_s=now_s, now_s=now_s)
    assert limit.value == lowered < WINDOW_MIN


def test_new_slots_raise_an_unlimited_replica_and_leave_a_limited_one() -> None:
    unlimited, limited = ConcurrencyLimit(16), ConcurrencyLimit(16)
    limited.observe(0.01, model=MODEL, prompt_bytes=PROMPT_BYTES, in_flight=1, started_s=0.0, now_s=0.0)
    drive(limited, lambda _: 9.0, requests=WINDOW_MIN)
    found = limited.value
    for limit in (unlimited, limited):
        limit.resize(32)
    assert (unlimited.value, limited.value) == (32, found)
    limited.resize(2)
    assert limited.value == 2
