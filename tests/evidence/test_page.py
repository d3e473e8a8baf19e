"""A page of evidence needs nothing else, runs nothing, and can be read by those who don't see its plots."""

import csv
import io
import math
import random
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.verdicts import Interval, Verdict
from headrace.evidence import numbers, page, plots, tables
from headrace.evidence.page import Section, Table
from headrace.evidence.plot_axes import ticks
from headrace.evidence.plot_lines import thinned
from headrace.evidence.plots import Axis, Histogram, Intervals, Kind, Limit, Lines, Parts, Plot, Series, Shape

EVIL = '<img src=x onerror=alert(1)> & "quoted"'
VOID = {"meta", "br", "img", "input", "hr", "link"}
SECONDS = Axis("since the start", Kind.SECONDS)


def every_plot(name: str = "chat") -> list[Plot]:
    series = [
        Series(name, [(0, 1), (1, None), (2, 3)], [(0.5, 2), None, (2, 4)]),
        Series("other", [(0, 2), (2, 2)]),
    ]
    lines = (Lines(name, SECONDS, Axis("rate"), series, shape, [Limit(2.5, name)]) for shape in Shape)
    return [
        *lines,
        Histogram(name, SECONDS, Axis("requests"), [0, 1, 2], [("ok", [3, 0]), (name, [1, 2])]),
        Intervals(
            name,
            Axis("difference", Kind.SHARE),
            [(name, Interval(0.1, None, 0.2)), ("nothing", Interval(None, None, None))],
            [Limit(0, "none")],
        ),
        Parts(name, SECONDS, ["queue", name], [("median", [0.1, 0.2]), ("none", [0.0, 0.0])]),
    ]


class Outline(HTMLParser):
    """What is open is closed again, in order; every attribute is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def evil_page() -> str:
    section = Section(
        EVIL,
        [EVIL],
        [Table([EVIL, "n"], [[EVIL, "1"]], EVIL)],
        every_plot(EVIL),
        Verdict.INCONCLUSIVE,
        EVIL,
    )
    return page.page(EVIL, [section, section], lead=[EVIL], facts=[(EVIL, EVIL)], foot=[EVIL])


def test_a_page_loads_nothing_runs_nothing_and_shows_what_it_is_given_as_text() -> None:
    outline = Outline()
    outline.feed(evil_page())
    assert outline.open == []
    assert not {"script", "img", "link", "iframe", "object"} & {tag for tag, _ in outline.tags}
    assert not [name for _, given in outline.tags for name in given if name.startswith("on")]
    assert not [
        given for _, given in outline.tags if {"src", "href", "srcset", "data", "style"} & given.keys()
    ]
    assert "url(" not in evil_page()
    assert "@import" not in evil_page()


def test_each_plot_has_a_name_and_a_text_of_its_own_for_those_who_do_not_see_it() -> None:
    drawn = [
        ElementTree.fromstring(svg)
        for svg in re.findall(r'<svg class="plot".*?</svg>', evil_page(), re.DOTALL)
    ]
    assert len(drawn) == 2 * len(every_plot())
    ids = [one.get("id") for svg in drawn for one in svg.iter() if one.get("id")]
    assert len(ids) == len(set(ids)) == 2 * len(drawn)
    for svg in drawn:
        assert svg.get("role") == "img"
        named, described = svg.find("title"), svg.find("desc")
        assert named is not None
        assert described is not None
        assert svg.get("aria-labelledby") == f"{named.get('id')} {described.get('id')}"
        assert described.text
    said = drawn[0].findtext("desc") or ""
    assert "1 to 3, last 3" in said


def test_a_plot_of_nothing_is_an_empty_plot() -> None:
    nothing: list[Plot] = [
        Lines("x", SECONDS, Axis("y"), [Series("none", [])]),
        Lines("x", Axis("t", is_log=True), Axis("y", is_log=True), [Series("none", [(0, 0), (1, math.inf)])]),
        Histogram("x", SECONDS, Axis("y"), [], [("ok", [])]),
        Intervals("x", SECONDS, []),
        Parts("x", SECONDS, ["a"], []),
    ]
    for plot in nothing:
        figure = plots.figure(plot, number=0)
        assert "nan" not in figure.casefold()
        ElementTree.fromstring(figure)


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.booleans(), st.integers(2, 10))
def test_ticks_are_few_rise_and_lie_between_the_ends(
    low: float, reach: float, is_log: bool, wanted: int
) -> None:
    if is_log:
        low = abs(low) + 1e-6
    high = low + reach
    if high - low < 1e-9 * abs(low):
        return
    found = ticks(low, high, is_log=is_log, wanted=wanted)
    slack = 1e-6 * max(abs(low), abs(high), reach)
    assert found == sorted(set(found))
    assert all(low - slack <= tick <= high + slack for tick in found)
    assert len(found) <= max(15, wanted + 2)


@given(st.integers(641, 2000), st.integers())
def test_of_many_points_the_ends_and_the_extremes_are_kept(count: int, seed: int) -> None:
    chance = random.Random(seed)
    heights = [chance.random() for _ in range(count)]
    points = list(enumerate(heights))
    kept = thinned(points, lambda x: x / 100)
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    shown = [y for _, y in kept if y is not None]
    assert (min(shown), max(shown)) == (min(heights), max(heights))
    assert len(kept) <= 4 * (len(points) // 100 + 1)


def test_a_gap_in_many_points_stays_a_gap() -> None:
    points = [(x, None if 100 <= x < 400 else 1.0) for x in range(1000)]
    assert (100, None) in thinned(points, lambda x: x / 100)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "-"),
        (0.0, "0"),
        (0.0000004, "0.4 µs"),
        (0.00035, "350 µs"),
        (0.0125, "12.5 ms"),
        (0.9999, "1 s"),
        (1.25, "1.25 s"),
        (12345.6, "12,346 s"),
        (-0.05, "-50 ms"),
    ],
)
def test_seconds_are_written_in_the_unit_that_suits_them(value: float | None, written: str) -> None:
    assert numbers.seconds(value) == written


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, "-"),
        (0, "0"),
        (0.00001234, "1.23e-05"),
        (0.004321, "0.00432"),
        (0.4567, "0.457"),
        (9.999, "10"),
        (1234567, "1,234,567"),
    ],
)
def test_numbers_have_no_more_digits_than_they_bear(value: float | None, written: str) -> None:
    assert numbers.number(value) == written


def test_a_share_is_written_in_percent() -> None:
    assert (numbers.share(0.125), numbers.share(None), numbers.share(1)) == ("12.5 %", "-", "100 %")


@pytest.mark.parametrize("missing", [0.009, 0.005, 0.001, 0.0005, 0.00004, 1e-7])
def test_what_is_not_all_of_it_does_not_read_as_all(missing: float) -> None:
    """A promise of 99.95 % isn't one of 100 %."""
    written = numbers.share(1 - missing)
    assert written != "100 %"
    assert 1 - float(written.removesuffix(" %")) / 100 == pytest.approx(missing, rel=0.06)


def test_markdown_says_what_the_page_says() -> None:
    text = tables.markdown(
        [
            Section(
                "Load",
                ["Prose."],
                [Table(["what", "p50"], [["a|b", "3 ms"]], "By model")],
                (),
                Verdict.PASS,
                "All of it.",
            )
        ],
        title="Report",
        lead=["Lead."],
    )
    assert text.splitlines() == [
        "# Report", "", "Lead.", "", "## Load", "", "**pass**: All of it.", "", "Prose.", "", "By model", "",
        "| what | p50 |", "| --- | ---: |", r"| a\|b | 3 ms |",
    ]  # fmt: skip


def test_figures_stand_to_the_right_and_words_to_the_left() -> None:
    rows = [["x", "1 ms", "-", "≤ 5", "-0.5"], ["y", "20 (1 to 30)", "3", "+4", "7"]]
    assert page.words(Table("abcde", rows)) == [True, False, False, False, False]
    assert page.words(Table("abcde", rows, left=2)) == [True, True, False, False, False]
    assert page.words(Table("ab", [])) == [True, True]


def test_a_spreadsheet_takes_no_cell_for_a_formula() -> None:
    text = tables.csv_text(["a", "b", "c", "d"], [["=1+1", "-5", -0.5, True], ["-cmd", "+1e3", None, "a,b"]])
    assert list(csv.reader(io.StringIO(text))) == [
        ["a", "b", "c", "d"], ["'=1+1", "-5", "-0.5", "true"], ["'-cmd", "+1e3", "", "a,b"],
    ]  # fmt: skip
