"""Traces of requests are read in the formats in which they are published, and what is wrong in them is told by its line."""

from itertools import islice
from pathlib import Path

import pytest

from headrace.core.errors import ConfigError
from headrace.core.workload import ArrivalKind, Arrivals, Arrived, Workload, closed
from headrace.evidence import requests, traces

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51,879,55
"""
MOONCAKE = """{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 49]}
"""
BURSTGPT = """Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,1.2,ChatGPT,472,18,490,Conversation log
45,,3.4,ChatGPT,1087,230,1317,API log
"""
OWN = """arrival_ms,input_tokens,output_tokens,conversation,is_streamed,cached_tokens,cancel_after_ms
100.0,20,5,c1,true,4,
600.0,,,,0,,250
"""


def read(tmp_path: Path, text: str, name: str = "trace.csv") -> list[Arrived]:
    path = tmp_path / name
    path.write_text(text)
    return list(traces.read(path))


def test_azures_columns_are_dates_and_lengths(tmp_path: Path) -> None:
    found = read(tmp_path, AZURE)
    assert [each.at_s for each in found] == pytest.approx([0.0, 4.314579, 4.31941], abs=1e-5)
    assert [(each.input_tokens, each.output_tokens) for each in found] == [(374, 44), (396, 109), (879, 55)]


def test_a_date_may_name_its_zone_and_a_table_may_begin_with_a_mark(tmp_path: Path) -> None:
    """Azure's table of 2024 has zones; spreadsheets write a byte order mark."""
    text = """\ufeffTIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01+00:00,2399,6
2024-05-10T02:00:02+02:00,76,15
"""
    assert [each.at_s for each in read(tmp_path, text)] == pytest.approx([0.0, 0.99007, 1.99007])


def test_mooncakes_lines_are_milliseconds_and_blocks(tmp_path: Path) -> None:
    found = read(tmp_path, MOONCAKE, "trace.jsonl")
    assert [each.at_s for each in found] == pytest.approx([0.0, 3.053])
    assert found[0] == Arrived(0.0, 6955, 52, (46, 47, 48))
    assert found[1][1:4] == (6472, 26, (46, 49))


def test_burstgpts_columns_are_seconds_and_sessions(tmp_path: Path) -> None:
    assert read(tmp_path, BURSTGPT) == [
        Arrived(0.0, 472, 18, conversation="s1"),
        Arrived(40.0, 1087, 230),
    ]


def test_own_columns_may_be_empty_in_some_lines(tmp_path: Path) -> None:
    assert read(tmp_path, OWN) == [
        Arrived(0.0, 20, 5, (), "c1", True, 4, None),
        Arrived(0.5, None, None, (), "", False, None, 0.25),
    ]


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("arrival_ms\n", "t.csv", "no requests in it"),
        ("when\n5\n", "t.csv", "line 2: no time of arrival: it has none of the columns arrival_s"),
        ("arrival_ms\nsoon\n", "t.csv", "line 2: `arrival_ms`: 'soon' is no time"),
        ("arrival_ms\n5\n4\n", "t.csv", "line 3: it came before the line above it; sort them"),
        ("arrival_s,input_tokens\n0,many\n", "t.csv", "line 2: `input_tokens`: invalid literal"),
        ("arrival_s,input_tokens\n0,-1\n", "t.csv", "line 2: `input_tokens`: -1 tokens can't be true"),
        ("arrival_s,is_streamed\n0,perhaps\n", "t.csv", "line 2: `is_streamed`: 'perhaps' is neither"),
        ('{"timestamp": 0}\n\n[1]\n', "t.jsonl", "line 3: no object of JSON"),
        ('{"timestamp": 0, "hash_ids": ["a"]}\n', "t.jsonl", "line 1: `hash_ids`"),
        ('{"timestamp": [0]}\n', "t.jsonl", r"line 1: `timestamp`: \[0\] is no time"),
        ("arrival_s\nnan\n", "t.csv", "line 2: `arrival_s`: 'nan' is no time"),
        ("arrival_s\n0\n1e300\n", "t.csv", "line 3: it came 1e\\+300 s after the first"),
        ("arrival_s,cancel_after_ms\n0,nan\n", "t.csv", "line 2: `cancel_after_ms`: nobody waits for nan ms"),
        ("arrival_s,cancel_after_ms\n0,-1\n", "t.csv", "line 2: `cancel_after_ms`: nobody waits"),
        ("arrival_s,cancel_after_ms\n0,inf\n", "t.csv", "line 2: `cancel_after_ms`: nobody waits"),
        ('{"timestamp": 0, "input_length": 2.5}\n', "t.jsonl", "line 1: `input_length`: 2.5 is no number"),
        ('{"timestamp": 0, "input_length": true}\n', "t.jsonl", "line 1: `input_length`: True is no number"),
    ],
)
def test_what_is_wrong_is_told_by_its_line_and_column(
    text: str, name: str, told: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=told):
        read(tmp_path, text, name)


def test_a_file_that_is_not_there_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        list(traces.read(tmp_path / "none.csv"))
    (tmp_path / "t.csv").write_bytes(b"arrival_ms\n\xff\n")
    with pytest.raises(ConfigError, match="no trace"):
        list(traces.read(tmp_path / "t.csv"))


def test_a_trace_is_read_no_further_than_it_is_used(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_ms\n0\n1\nsoon\n")
    assert [each.at_s for each in islice(traces.read(path), 2)] == [0.0, 0.001]


def test_a_trace_at_another_rate_has_that_mean(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,cancel_after_ms\n7,\n8,100\n11,\n")
    found = list(traces.at_rate(path, 5.0))
    assert [each.at_s for each in found] == pytest.approx([0.0, 0.1, 0.4])
    assert found[1].cancel_after_s == 0.1
    path.write_text("arrival_s\n7\n7\n")
    with pytest.raises(ConfigError, match="come at once"):
        traces.at_rate(path, 5.0)


def test_a_workload_plans_what_its_trace_says_at_its_rate_or_another(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,3\n2,8,2\n4,7,1\n")
    arrivals = Arrivals(ArrivalKind.TRACE, file=str(path))
    planned = list(requests.requests(Workload("w", arrivals)))
    assert [(each.due_s, each.input_tokens, each.output_tokens) for each in planned] == [
        (0.0, 9, 3),
        (2.0, 8, 2),
        (4.0, 7, 1),
    ]
    assert [each.due_s for each in requests.requests(Workload("w", arrivals), rate_per_s=2.0)] == [
        0.0,
        0.5,
        1.0,
    ]
    slower = Arrivals(ArrivalKind.TRACE, file=str(path), rate_per_s=0.25)
    assert [each.due_s for each in requests.requests(Workload("w", slower))] == [0.0, 4.0, 8.0]


def test_a_workload_at_twice_the_speed_has_twice_the_rate(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,input_tokens,output_tokens\n0,9,3\n2,8,2\n4,7,1\n")
    faster = requests.at_speed(requests.load(str(path)), 2.0)
    assert [each.due_s for each in requests.requests(faster)] == [0.0, 1.0, 2.0]
    small = requests.load(requests.SMALL)
    assert requests.at_speed(small, 3.0).arrivals.rate_per_s == 3.0
    with pytest.raises(ConfigError, match="is a closed loop"):
        requests.at_speed(closed(small, 2), 2.0)
