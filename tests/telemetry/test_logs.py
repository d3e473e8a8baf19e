"""Claims about the log: one JSON object per line, only declared facts, bounded under a flood, never in the way."""

import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.core.clock import ManualClock
from headrace.telemetry.logs import EVENTS, LINES_PER_S_MAX, Level, Log
from headrace.telemetry.metrics import Metrics

PAGE = Path(__file__).parents[2] / "docs" / "operate" / "logs.md"


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """Every line as JSON; splitting at \\n only, as a log reader does."""
    text = stream.getvalue()
    assert text == "" or text.endswith("\n")
    return [json.loads(line) for line in text.split("\n")[:-1]]


def test_an_event_is_one_line_with_time_level_and_its_fields() -> None:
    stream, clock = io.StringIO(), ManualClock()
    Log(stream, clock).event("replica.lost", reason="exited", replica="chat-0", exit_status=-9)
    assert lines(stream) == [
        {
            "ts": "2023-11-14T22:13:20.000Z",
            "level": "warning",
            "event": "replica.lost",
            "replica": "chat-0",
            "reason": "exited",
            "exit_status": -9,
        }
    ]


@pytest.mark.parametrize(
    "text",
    [
        "two\r\nlines",
        '{"event":"forged"}\n{"event":"forged"}',
        "\x1b]0;title\x07\x1b[2J",
        "\x9b31m\x85\u2028\u2029",
        "lone \ud800 surrogate",
        'nul \0 and quote " and back\\slash',
    ],
)
def test_hostile_text_stays_one_line_of_printable_ascii(text: str) -> None:
    """T45: nothing in a model name or an upstream's words can forge a line or steer a terminal."""
    stream = io.StringIO()
    Log(stream, ManualClock()).event("request.refused", model=text)
    line = stream.getvalue()
    assert line.count("\n") == 1
    assert line[:-1].isascii()
    assert line[:-1].isprintable()
    assert lines(stream)[0]["model"] == text


def test_long_text_is_cut() -> None:
    stream = io.StringIO()
    Log(stream, ManualClock()).event("request.refused", model="m" * 10_000_000)
    assert lines(stream)[0]["model"] == "m" * 500


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_json_does_not_know_still_gives_json(number: float) -> None:
    stream = io.StringIO()
    Log(stream, ManualClock()).event("request.failed", total_s=number)
    assert lines(stream)[0]["total_s"] == str(number)


def test_what_is_not_declared_cannot_be_written() -> None:
    """T47: an event or field outside the list is an error at the first test that meets it."""
    stream = io.StringIO()
    log = Log(stream, ManualClock())
    with pytest.raises(AssertionError, match="prompt"):
        log.event("request.failed", prompt="my secret")
    with pytest.raises(AssertionError, match="bytes"):
        log.event("request.failed", reason=b"my secret")  # type: ignore[arg-type]
    with pytest.raises(KeyError):
        log.event("request.exploded")
    assert stream.getvalue() == ""


def test_without_asserts_an_undeclared_field_is_left_out() -> None:
    """T47: `python -O` switches asserts off, not the allow-list."""
    script = (
        "import sys; from headrace.core.clock import ManualClock; from headrace.telemetry.logs import Log\n"
        "Log(sys.stderr, ManualClock()).event('request.failed', prompt='canary', reason='x')"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=True)
    assert "canary" not in done.stderr
    assert json.loads(done.stderr)["reason"] == "x"


def test_levels_below_the_chosen_one_are_not_written() -> None:
    quiet, chatty = io.StringIO(), io.StringIO()
    Log(quiet, ManualClock()).event("request.delivered", status=200)
    Log(chatty, ManualClock(), Level.DEBUG).event("request.delivered", status=200)
    assert lines(quiet) == []
    assert [line["level"] for line in lines(chatty)] == ["debug"]


def test_a_flood_becomes_twenty_lines_a_second_and_a_count() -> None:
    """T16: what isn't written is counted, once, when its second is over; other events are not held back."""
    stream, clock = io.StringIO(), ManualClock()
    log = Log(stream, clock)
    for _ in range(1000):
        log.event("connection.rejected", code="no_host")
    log.event("keys.reloaded", keys=3)
    assert len(lines(stream)) == LINES_PER_S_MAX + 1
    clock.advance(1)
    log.tick()
    log.tick()
    assert lines(stream)[LINES_PER_S_MAX + 1 :] == [
        {
            "ts": "2023-11-14T22:13:21.000Z",
            "level": "info",
            "event": "connection.rejected",
            "suppressed": 1000 - LINES_PER_S_MAX,
        }
    ]
    log.event("connection.rejected", code="no_host")
    assert lines(stream)[-1]["code"] == "no_host"


def test_a_reader_that_went_away_is_not_our_problem() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "w", encoding="utf-8") as stream:
        log = Log(stream, ManualClock())
        log.event("keys.reloaded", keys=1)
        log.event("keys.reloaded", keys=2)
        # The interpreter would fail to flush what is left when it closes the file; point it elsewhere first.
        os.dup2(os.open(os.devnull, os.O_WRONLY), write_end)
    log.event("keys.reloaded", keys=3)


def test_an_internal_error_names_its_type_and_our_line_but_not_its_text() -> None:
    """T47: the text of an exception may quote a prompt."""
    stream = io.StringIO()
    log = Log(stream, ManualClock())
    for bug in (lambda: Metrics().retries.labels("my secret", "too many"), lambda: int("my secret")):
        try:
            bug()
        except Exception as error:
            log.internal_error(error, where="gateway", request_id="req_1")
    ours, elsewhere = lines(stream)
    assert ours["error"] == "AssertionError"
    assert re.fullmatch(r"headrace/telemetry/families\.py:\d+", ours["at"])
    assert elsewhere["error"] == "ValueError"
    assert elsewhere["at"].startswith("test_logs.py:")
    assert ours["level"] == elsewhere["level"] == "error"
    assert "secret" not in stream.getvalue()


@pytest.mark.parametrize("name", EVENTS)
def test_every_event_stands_on_the_page_with_its_fields(name: str) -> None:
    event = EVENTS[name]
    fields = ", ".join(f"`{field}`" for field in event.fields)
    row = f"| `{name}` | {event.level.name.lower()} | {event.meaning} | {fields} |"
    assert row in PAGE.read_text(encoding="utf-8").splitlines()


def test_the_page_names_no_event_that_does_not_exist() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert {row.split("`")[1] for row in rows} == set(EVENTS)


def test_no_event_has_a_field_for_content() -> None:
    """T47: the words under which prompts, answers, keys and headers would hide are not declared anywhere."""
    declared = {field for event in EVENTS.values() for field in event.fields}
    assert not declared & {
        "prompt",
        "messages",
        "completion",
        "body",
        "key",
        "authorization",
        "headers",
        "text",
        "url",
    }


STRAYS = """
import gc, logging, sys, threading, warnings
from headrace.core.clock import SystemClock
from headrace.telemetry.logs import Log
from headrace.telemetry.strays import capture_strays

capture_strays(Log(sys.stderr, SystemClock()))
logging.getLogger("some.library").warning("canary %s", "canary")
logging.getLogger("some.library").info("canary")
try:
    raise ValueError("canary")
except ValueError:
    logging.getLogger("uvicorn.error").exception("canary")
warnings.warn("canary", stacklevel=1)

def die():
    raise KeyError("canary")

thread = threading.Thread(target=die)
thread.start()
thread.join()

class Leaky:
    def __del__(self):
        raise OSError("canary")

Leaky()
gc.collect()
"""


def test_libraries_and_dying_threads_reach_the_log_without_their_text() -> None:
    """T47: standard error carries our JSON lines and nothing else, whoever speaks."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", STRAYS], capture_output=True, text=True, check=True
    )
    said = [json.loads(line) for line in done.stderr.splitlines()]
    assert "canary" not in done.stderr
    assert [(line["event"], line.get("logger") or line.get("where"), line["error"]) for line in said] == [
        ("library.warned", "some.library", None),
        ("library.warned", "uvicorn.error", "ValueError"),
        ("library.warned", "py.warnings", None),
        ("internal.error", "thread", "KeyError"),
        ("internal.error", "finalizer", "OSError"),
    ]
