"""A terminal shows of a page's sections what can be read there, and obeys nothing in them."""

import pytest

from headrace.cli.section_text import print_sections
from headrace.core.verdicts import Verdict
from headrace.evidence.page import Section, Table


def test_sections_read_in_a_terminal_as_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    print_sections(
        [
            Section("Load", ["Of `chat`\x1b[2J."], [], (), Verdict.FAIL, "too slow"),
            Section(
                "Times", tables=[Table(["what", "p50"], [["ttft", "120 ms"], ["itl", "9 ms"]], "From here")]
            ),
        ]
    )
    assert capsys.readouterr().out.splitlines() == [
        "Load", "fail: too slow", "Of chat [2J.", "", "Times", "", "From here", "WHAT     P50", "ttft  120 ms", "itl     9 ms",
    ]  # fmt: skip
