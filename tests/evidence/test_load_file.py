"""A load test's file is a trace as well: what was asked of a server, not what it made of it."""

from pathlib import Path
from typing import Any

import pytest

from headrace.core.errors import ConfigError
from headrace.core.load_records import LoadRecord, Outcome
from headrace.evidence import load_file, traces
from headrace.policies.load_report import summarise
from tests.policies.load_rig import run_of


def written(folder: Path, *records: LoadRecord) -> Path:
    run = run_of(list(records))
    path = folder / "run.json"
    path.write_bytes(load_file.encode(summarise(run), run))
    return path


def test_a_run_is_a_trace_of_what_was_asked_whatever_became_of_it(tmp_path: Path) -> None:
    asked: Any = {"planned_input_tokens": 30, "planned_output_tokens": 9}
    path = written(
        tmp_path,
        LoadRecord(1, 2.5, 2.5, None, None, 2.6, Outcome.REFUSED, conversation=1, **asked),
        LoadRecord(
            0, 2.0, 2.1, 2.2, 2.3, 2.3, Outcome.OK,
            input_tokens=31, output_tokens=4, cached_tokens=8, is_streamed=True, conversation=0, **asked,
        ),
        LoadRecord(2, 3.0, None, None, None, 3.0, Outcome.UNSENT, conversation=0, turn=2, **asked),
        LoadRecord(3, 4.0, 4.25, 4.5, 4.5, 5.0, Outcome.CANCELLED, conversation=2, **asked),
        LoadRecord(4, 4.5, 4.5, 4.5, 4.5, 5.0, Outcome.OK, conversation=3, input_tokens=7, output_tokens=2),
    )  # fmt: skip
    found = list(traces.read(path))
    assert [row.at_s for row in found] == [0.0, 0.5, 1.0, 2.0, 2.5]
    assert [(row.input_tokens, row.output_tokens) for row in found] == [(30, 9)] * 4 + [(7, 2)]
    assert [row.conversation for row in found] == ["0", "", "0", "", ""], "one turn alone is no conversation"
    assert [row.cancel_after_s for row in found] == [None, None, None, 0.75, None]
    assert (found[0].is_streamed, found[0].cached_tokens) == (True, 8)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"{}", "not a load test, as `headrace load --records` writes one"),
        (b"\xff", "UTF-8"),
        (b'{"run": {"records": [[0]]}}', "not a load test"),
    ],
)
def test_what_is_no_load_test_is_named(content: bytes, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint) as raised:
        list(traces.read(path))
    assert str(path) in str(raised.value)


def test_a_file_in_which_a_request_is_there_twice_is_refused(tmp_path: Path) -> None:
    twice = LoadRecord(0, 1.0, 1.0, None, None, 1.1, Outcome.FAILED)
    with pytest.raises(ConfigError, match="a request is there twice"):
        load_file.read(written(tmp_path, twice, twice))


def test_a_run_without_requests_is_no_trace(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no requests in it"):
        list(traces.read(written(tmp_path)))
