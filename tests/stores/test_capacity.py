"""Measurements are kept by model, newest first, and named by number or model."""

from pathlib import Path

import msgspec
import pytest

from headrace.core.capacity import CapacityRecord, Hardware
from headrace.core.errors import ConfigError
from headrace.stores import capacity
from headrace.stores.capacity import CapacityStore, Kept
from headrace.stores.opening import open_local

RECORD = CapacityRecord(
    model="chat", digest="sha256:1", runtime="embedded", hardware=Hardware(cpu="c", cores=2, memory_bytes=1),
    slots=2, levels=(), saturation=(), measured_s=1.0, took_s=2.0,
)  # fmt: skip
OTHER = msgspec.structs.replace(RECORD, model="other", digest="sha256:2")


def test_what_was_measured_is_found_again_newest_first(tmp_path: Path) -> None:
    store = CapacityStore(open_local(tmp_path))
    newer = msgspec.structs.replace(RECORD, digest="sha256:9")
    numbers = [store.add(each) for each in (RECORD, OTHER, newer)]
    assert store.records(model="chat") == [Kept(numbers[2], newer), Kept(numbers[0], RECORD)]
    assert store.newest(model="chat") == Kept(numbers[2], newer)
    assert store.newest(model="chat", digest="sha256:1") == Kept(numbers[0], RECORD)
    assert store.newest(model="chat", digest="sha256:2") is None
    assert store.require(str(numbers[1])) == store.require("other") == Kept(numbers[1], OTHER)
    store.close()


def test_what_was_not_measured_is_told_with_what_was(tmp_path: Path) -> None:
    store = CapacityStore(open_local(tmp_path))
    with pytest.raises(ConfigError, match="nothing was measured yet"):
        store.require("chat")
    store.add(RECORD)
    for name in ("7", "nobody"):
        with pytest.raises(ConfigError, match="there are records of chat"):
            store.require(name)
    store.close()


def test_of_each_model_only_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "RECORDS_MAX", 2)
    store = CapacityStore(open_local(tmp_path))
    first = store.add(OTHER)
    numbers = [store.add(RECORD) for _ in range(3)]
    assert [kept.number for kept in store.records()] == [numbers[2], numbers[1], first]
    store.close()
