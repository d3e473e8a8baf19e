"""What the tests of the model store share: a store that doesn't wait, and a place that serves files."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.core.clock import ManualClock
from headrace.stores.downloads import Patience
from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer, file_server
from tests.support.tiny_models import Heard


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def served() -> Iterator[FileServer]:
    with file_server() as server:
        yield server


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> ModelStore:
    """Waits by moving the clock."""
    return ModelStore(
        tmp_path / "models", known={}, clock=clock, patience=Patience(attempts_max=3, sleep=clock.advance)
    )
