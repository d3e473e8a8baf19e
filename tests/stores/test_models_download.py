"""Downloads: cut, killed, lied to and redirected, the right bytes arrive or none do."""

import hashlib
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.core.errors import ConfigError, UpstreamError
from headrace.stores import downloads
from headrace.stores.downloads import Patience, Sha256Seal
from tests.support.file_server import FileServer
from tests.support.tiny_models import Heard

CONTENT = bytes(range(256)) * 1024
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def fetch(server: FileServer, folder: Path, heard: Heard, *, pauses: list[float] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    waited: list[float] = [] if pauses is None else pauses
    return downloads.fetch(
        f"{server.url}/file",
        folder,
        seal=Sha256Seal(DIGEST),
        check_space=lambda needed: None,
        progress=heard,
        patience=Patience(attempts_max=3, sleep=waited.append),
    )


@pytest.fixture
def server(served: FileServer) -> FileServer:
    served.files["/file"] = CONTENT
    return served


def test_a_file_arrives_whole_with_progress_up_to_its_size(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT
    assert heard.advances[-1] == (len(CONTENT), len(CONTENT))


def test_reading_a_large_file_is_progress_too(
    server: FileServer, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4: a hundred gigabytes are read for minutes after their last byte has come, and that is no stall."""
    monkeypatch.setattr(downloads, "TOLD_FROM_BYTES", len(CONTENT))
    monkeypatch.setattr(downloads, "CHUNK_BYTES", len(CONTENT) // 4)
    fetch(server, tmp_path, heard)
    assert heard.lines[-1] == "checking 0.3 MB"
    assert heard.advances[-4:] == [(len(CONTENT) * quarter // 4, len(CONTENT)) for quarter in (1, 2, 3, 4)]


def test_a_cut_connection_goes_on_where_it_stopped(server: FileServer, tmp_path: Path, heard: Heard) -> None:
    server.cut_after_bytes = [100_000, 50_000]
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT
    assert [call.range for call in server.of("GET")] == [None, "bytes=100000-", "bytes=150000-"]


def test_attempts_that_bring_bytes_do_not_use_up_patience(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    server.cut_after_bytes = [1000] * 10
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT


def test_patience_ends_and_what_has_arrived_is_kept(server: FileServer, tmp_path: Path, heard: Heard) -> None:
    pauses: list[float] = []
    server.cut_after_bytes = [1000, 0, 0]
    with pytest.raises(UpstreamError, match="what has arrived is kept"):
        fetch(server, tmp_path, heard, pauses=pauses)
    assert pauses == [1.0, 2.0]
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT
    assert server.of("GET")[-1].range == "bytes=1000-"


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_passing_failure_of_the_server_is_retried(
    server: FileServer, tmp_path: Path, heard: Heard, status: int
) -> None:
    server.statuses = [status, status]
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_a_lasting_refusal_is_the_operators_and_is_not_retried(
    server: FileServer, tmp_path: Path, heard: Heard, status: int
) -> None:
    server.statuses = [status]
    with pytest.raises(ConfigError, match=str(status)):
        fetch(server, tmp_path, heard)
    assert len(server.received) == 1


def test_a_partial_file_that_leads_to_a_wrong_digest_is_thrown_away_and_fetched_again(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / f"{DIGEST}.part").write_bytes(b"of another file")
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT
    assert [call.range for call in server.of("GET")] == ["bytes=15-", None]


def test_a_partial_file_longer_than_the_file_is_thrown_away(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / f"{DIGEST}.part").write_bytes(bytes(len(CONTENT) + 1))
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT


def test_a_process_killed_between_the_last_byte_and_the_check_costs_no_transfer(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / f"{DIGEST}.part").write_bytes(CONTENT)
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT
    assert heard.advances == []


def test_a_server_without_ranges_serves_from_the_start(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    (tmp_path / f"{DIGEST}.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT
    assert len(server.received) == 1


def test_wrong_bytes_are_refused_and_nothing_is_kept(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    server.files["/file"] = CONTENT[:-1] + b"!"
    with pytest.raises(UpstreamError, match="nothing was kept") as caught:
        fetch(server, tmp_path, heard)
    assert caught.value.reason == "digest_mismatch"
    assert list(tmp_path.iterdir()) == []
    assert len(server.received) == 1, "a whole file with a wrong digest is not fetched twice"


def test_a_place_that_sends_almost_nothing_is_given_up_though_each_attempt_brings_something(
    server: FileServer, tmp_path: Path, heard: Heard
) -> None:
    clock = ManualClock()

    def slow_now_s() -> float:
        clock.advance(100)  # with each piece that comes
        return clock.now_s()

    server.cut_after_bytes = [1000] * 3
    with pytest.raises(UpstreamError, match=r"only \d+ bytes in 60 s \(3 attempts\)"):
        downloads.fetch(
            f"{server.url}/file",
            tmp_path,
            seal=Sha256Seal(DIGEST),
            check_space=lambda needed: None,
            progress=heard,
            patience=Patience(
                attempts_max=3, slow_bytes=1 << 30, sleep=lambda pause_s: None, now_s=slow_now_s
            ),
        )
    assert fetch(server, tmp_path, heard).read_bytes() == CONTENT, "what came is kept"


def test_a_full_disk_is_noticed_before_the_body(server: FileServer, tmp_path: Path, heard: Heard) -> None:
    asked: list[int] = []

    def refuse(needed_bytes: int) -> None:
        asked.append(needed_bytes)
        raise ConfigError("no space")

    with pytest.raises(ConfigError, match="no space"):
        downloads.fetch(
            f"{server.url}/file",
            tmp_path,
            seal=Sha256Seal(DIGEST),
            check_space=refuse,
            progress=heard,
            patience=Patience(),
        )
    assert asked == [len(CONTENT)]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["http://example.com/x", "ftp://127.0.0.1/x", "file:///etc/passwd"])
def test_only_https_and_this_machine_are_asked(url: str) -> None:
    with pytest.raises(ConfigError, match="https"):
        downloads.request(url, headers={})
