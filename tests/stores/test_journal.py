"""The journal outlives its process: what was written is there, once, and damage costs what was damaged and nothing else."""

import random
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.fleet import Replica
from headrace.core.ids import KeyId, ReplicaId, RequestId, TenantId
from headrace.core.request import Endpoint, InferenceRequest
from headrace.core.tenant import Principal, TenantLimits
from headrace.stores import journal
from headrace.stores.journal import Journal, Mark
from tests.stores.test_ledger import execution_record, usage_record

REPLICA = Replica(ReplicaId("r0"), "127.0.0.1", 9, 1, generation=3)


def request(name: str, *, model: str = "m") -> InferenceRequest:
    return InferenceRequest(
        id=RequestId(name),
        principal=Principal(TenantId("acme"), KeyId("k3x9q2ab"), TenantLimits()),
        endpoint=Endpoint.CHAT_COMPLETIONS,
        model=model,
        canonical=b"",
        wire_fields={},
        is_streaming=True,
        wants_usage=False,
        prompt_bytes=1,
        output_tokens_max=None,
        choices=1,
        arrived_s=5.0,
        arrived_wall_s=1_700_000_000.25,
        deadline_s=9.0,
    )


def make(path: Path, *, records_max: int = 10, marks_max: int = 4) -> Journal:
    return Journal(path, records_max=records_max, marks_max=marks_max)


def append(made: Journal, name: str) -> None:
    made.append(usage_record(name), [execution_record(name)])


def names(found: journal.Salvage) -> list[str]:
    return [usage.request_id for usage, _ in found.entries]


def test_a_mark_says_who_had_what_where_until_its_record_comes(tmp_path: Path) -> None:
    made = make(tmp_path / "a.journal")
    made.begin(request("req_1"), REPLICA, 1)
    made.begin(request("req_2"), REPLICA, 1)
    made.begin(request("req_1"), REPLICA, 2)
    found = journal.read(made.path)
    first = Mark(
        RequestId("req_1"), TenantId("acme"), KeyId("k3x9q2ab"), "m", ReplicaId("r0"), 3, 2, 1_700_000_000.25
    )
    assert found.marks == [first, msgspec.structs.replace(first, request_id=RequestId("req_2"), attempt=1)]
    append(made, "req_1")
    found = journal.read(made.path)
    assert [mark.request_id for mark in found.marks] == ["req_2"]
    assert found.entries == [(usage_record("req_1"), [execution_record("req_1")])]
    assert found.torn == 0


def test_a_name_that_is_too_long_for_a_mark_is_cut(tmp_path: Path) -> None:
    made = make(tmp_path / "a.journal")
    made.begin(request("req_1", model="m" * 5000), REPLICA, 1)
    (mark,) = journal.read(made.path).marks
    assert mark.request_id == "req_1"
    assert set(mark.model) == {"m"}


def test_of_two_records_of_one_request_the_last_one_counts(tmp_path: Path) -> None:
    made = make(tmp_path / "a.journal")
    append(made, "req_1")
    made.append(usage_record("req_1", outcome="broken"), [])
    assert journal.read(made.path).entries == [(usage_record("req_1", outcome="broken"), [])]


def test_a_journal_without_anything_in_it_leaves_no_file(tmp_path: Path) -> None:
    made = make(tmp_path / "a.journal")
    made.begin(request("req_1"), REPLICA, 1)
    append(made, "req_1")
    made.committed(1)
    made.close()
    assert not made.path.exists()


@pytest.mark.parametrize("committed", [0, 1])
def test_a_journal_with_something_in_it_stays(tmp_path: Path, committed: int) -> None:
    made = make(tmp_path / "a.journal")
    append(made, "req_1")
    made.begin(request("req_2"), REPLICA, 1)
    made.committed(committed)
    made.close()
    found = journal.read(made.path)
    assert names(found) == ["req_1"][committed:]
    assert [mark.request_id for mark in found.marks] == ["req_2"]


def test_the_room_of_what_is_committed_is_used_again(tmp_path: Path) -> None:
    """A hundred times as much as there is room for; the file stays as large as it was made."""
    made = make(tmp_path / "a.journal", records_max=300)
    size = made.path.stat().st_size
    for number in range(1, 100_001):
        append(made, f"req_{number:06d}")
        assert not made.is_full
        if number % 250 == 0:
            made.committed(number - 100)
    assert names(journal.read(made.path)) == [f"req_{number:06d}" for number in range(99_901, 100_001)]
    assert made.path.stat().st_size == size


def test_a_journal_that_is_full_says_so_early_and_keeps_the_marks_of_what_finds_no_room(
    tmp_path: Path,
) -> None:
    """T29: what is in progress when new work is refused still finds room; beyond it a mark is left, until the commit."""
    made = make(tmp_path / "a.journal", records_max=100, marks_max=50)
    count = 0
    while not made.is_full:
        count += 1
        append(made, f"req_{count:06d}")
    assert count >= 100
    for _ in range(50):
        count += 1
        made.begin(request(f"req_{count:06d}"), REPLICA, 1)
    for number in range(count - 49, count + 1):
        append(made, f"req_{number:06d}")
    found = journal.read(made.path)
    assert (len(found.entries), found.marks) == (count, [])
    for _ in range(2000):
        count += 1
        made.begin(request(f"req_{count:06d}"), REPLICA, 1)
        append(made, f"req_{count:06d}")
    found = journal.read(made.path)
    assert len(found.entries) < count
    assert len(found.marks) == 50
    made.committed(count)
    assert journal.read(made.path) == journal.Salvage([], [], 0)
    append(made, "req_again")
    assert names(journal.read(made.path)) == ["req_again"]


@settings(max_examples=60)
@given(data=st.data())
def test_what_is_read_is_what_was_written_and_not_committed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    made = make(tmp_path_factory.mktemp("journal") / "a.journal", marks_max=8)
    begun: list[str] = []
    waiting: list[str] = []
    settled = 0
    for number in range(data.draw(st.integers(1, 40))):
        step = data.draw(st.sampled_from(["begin", "end", "end one that no replica had", "commit"]))
        if step == "begin" and len(begun) < 8:
            begun.append(f"req_{number}")
            made.begin(request(begun[-1]), REPLICA, 1)
        elif step == "end" and begun:
            waiting.append(begun.pop(data.draw(st.integers(0, len(begun) - 1))))
            append(made, waiting[-1])
        elif step == "commit":
            count = data.draw(st.integers(0, len(waiting)))
            settled += count
            del waiting[:count]
            made.committed(settled)
        else:
            waiting.append(f"req_{number}")
            append(made, waiting[-1])
        found = journal.read(made.path)
        assert names(found) == waiting
        assert {mark.request_id for mark in found.marks} == set(begun)
        assert found.torn == 0
    made.close()


def filled(path: Path) -> bytes:
    """A small journal with three marks and four records, up to the end of the last record."""
    made = make(path, marks_max=3)
    for number in range(1, 4):
        made.begin(request(f"req_{number}"), REPLICA, 1)
    for number in range(4, 8):
        append(made, f"req_{number}")
    return path.read_bytes().rstrip(b"\0")


def test_a_journal_cut_at_any_byte_gives_every_whole_record_before_the_cut(tmp_path: Path) -> None:
    """T30, at every offset: what is whole is kept, and what isn't is told."""
    content = filled(tmp_path / "a.journal")
    whole = journal.salvage(content)
    nonce = content[32:40]
    starts = [place for place in range(journal.PAGE_BYTES, len(content)) if content.startswith(nonce, place)]
    ends = [*starts[1:], len(content)]
    assert len(starts) == len(whole.entries) == 4
    for cut in range(1, len(content)):
        found = journal.salvage(content[:cut])
        if cut < journal.PAGE_BYTES:
            assert found == journal.Salvage([], [], 1)
            continue
        assert found.marks == whole.marks[: len(found.marks)]
        assert found.entries == whole.entries[: sum(end <= cut for end in ends)]
        if cut >= starts[0]:
            is_in_a_frame = any(
                start + len(nonce) <= cut < end for start, end in zip(starts, ends, strict=True)
            )
            assert (len(found.marks), found.torn) == (3, int(is_in_a_frame)), cut


def test_damage_at_any_byte_costs_at_most_the_record_that_was_there(tmp_path: Path) -> None:
    """T30: wherever a byte is changed, the records before and after it are kept."""
    content = bytearray(filled(tmp_path / "a.journal"))
    whole = journal.salvage(bytes(content))
    frames_at = content.index(content[32:40], journal.PAGE_BYTES)
    for place in range(journal.PAGE_BYTES, len(content)):
        content[place] ^= 0x55
        found = journal.salvage(bytes(content))
        content[place] ^= 0x55
        lost = [entry for entry in whole.entries if entry not in found.entries]
        lost_marks = [mark for mark in whole.marks if mark not in found.marks]
        assert len(lost) + len(lost_marks) <= 1, place
        if place >= frames_at:
            assert not lost_marks
        assert [entry for entry in found.entries if entry not in whole.entries] == []


@pytest.mark.parametrize("content", [b"", b"\0" * 10_000])
def test_a_process_that_died_before_it_had_written_anything_leaves_nothing(content: bytes) -> None:
    assert journal.salvage(content) == journal.Salvage([], [], 0)


@pytest.mark.parametrize("content", [b"x", b"SQLite format 3\0" * 1000, journal.MAGIC])
def test_a_file_that_is_no_journal_is_told_of(content: bytes) -> None:
    assert journal.salvage(content) == journal.Salvage([], [], 1)


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from tests.stores.test_journal import REPLICA, append, make, request

made = make(Path(sys.argv[1]), records_max=10_000)
for number in range(1_000_000):
    name = f"req_{number:06d}"
    made.begin(request(name), REPLICA, 1)
    append(made, name)
    made.committed(max(0, number - 500))
    if number % 50 == 0:
        print(number, flush=True)
"""


@pytest.mark.slow
def test_what_was_written_when_the_process_was_killed_is_there(tmp_path: Path) -> None:
    """T28: whatever the process was doing, all that it had appended is whole; at most one more was on its way."""
    chance = random.Random(28)
    root = Path(__file__).parents[2]
    for round_number in range(5):
        path = tmp_path / f"{round_number}.journal"
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path), str(root)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            reported = 0
            for _ in range(chance.randrange(20, 200)):
                reported = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            for line in process.stdout:
                if line.endswith("\n"):
                    reported = int(line)
        found = journal.read(path)
        numbers = [int(name.removeprefix("req_")) for name in names(found)]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert numbers[-1] >= reported
        assert 499 <= len(numbers) <= 502
        assert len(found.marks) <= 1
        assert found.torn <= 1
