"""A load report reads the same on a page, in a terminal and as rows."""

import csv
import io
import json
import random
from pathlib import Path

from headrace.core.load_records import Lateness, LoadRun, Outcome, Window
from headrace.core.verdicts import Verdict
from headrace.evidence import load_file, load_page
from headrace.policies.load_report import summarise
from tests.policies.load_rig import gaps, record, run_of, unsuccessful


def run(**fields: object) -> LoadRun:
    chance = random.Random(1)
    answers = [
        record(
            n,
            took_s=chance.lognormvariate(0, 0.3),
            gaps=gaps(0.1, 0.2),
            is_cold=n % 3 == 0,
            prefix_group=n % 2,
        )
        for n in range(80)
    ]
    refused = [
        unsuccessful(80 + n, Outcome.REFUSED, reason="rate_limited", status=429, has_retry_after=n > 1)
        for n in range(5)
    ]
    return run_of([*answers, *refused], window=Window(10.0, 90.0), environment={"headrace": "0.1"}, **fields)


def test_a_page_says_what_was_intended_how_it_ended_and_what_makes_a_difference() -> None:
    found = run()
    report = summarise(found)
    sections = load_page.sections(report, found)
    assert [section.heading for section in sections] == [
        "Is the run sound?", "What became of the requests?", "How long did answers take?", "What makes a difference?",
    ]  # fmt: skip
    assert "75 requests were intended: 75 sent and 0 unsent" in sections[1].prose[0]
    endings = {row[:4] for row in sections[1].tables[0].rows}
    assert {("refused", "rate_limited", "yes", "3"), ("refused", "rate_limited", "no", "2")} <= endings
    rows = {row[0]: row for row in sections[2].tables[0].rows}
    p99 = rows["total time, from the intended send"][6]
    assert p99.replace("\u00a0", " ") == "too few (70 of 299)"
    page = load_page.html(report, found, command="headrace load")
    assert page.count('class="plot"') == 5
    assert "not enough samples" in page
    assert "Made by <code>headrace load</code>." in page


def test_a_void_run_says_so_first() -> None:
    found = run(lateness=Lateness(0.1, 0.9, 1.0), is_stopped=True)
    section = load_page.sections(summarise(found), found)[0]
    assert section.verdict is Verdict.ERROR
    assert section.prose[0].startswith("The run is void")
    assert "It was stopped before its end." in section.prose


def test_a_run_of_nothing_has_a_report_too() -> None:
    found = run_of([])
    assert "<h1>" in load_page.html(summarise(found), found)


def test_each_record_is_a_row_and_the_run_can_be_read_again_from_its_json(tmp_path: Path) -> None:
    found = run()
    rows = list(csv.DictReader(io.StringIO(load_page.records_csv(found))))
    assert len(rows) == 85
    assert (rows[20]["number"], rows[20]["outcome"], rows[20]["gap_count"], rows[20]["is_in_window"]) == (
        "20", "ok", "2", "true",
    )  # fmt: skip
    file = tmp_path / "run.json"
    file.write_bytes(load_file.encode(summarise(found), found))
    assert load_file.read(file) == found
    assert json.loads(file.read_bytes())["report"]["intended"] == 75
