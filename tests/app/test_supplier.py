"""What a version is started with is what it was applied with."""

import asyncio
import io

import pytest

from headrace.app import runtimes
from headrace.app.supplier import ModelSupplier
from headrace.core.errors import ConfigError
from headrace.engines import embedded as engine
from headrace.telemetry.logs import Log
from tests.app.test_planning import NO_MODELS, Desk, desk, embedded

__all__ = ["desk"]


def test_an_engine_that_was_replaced_since_doesnt_run_what_pins_the_one_before(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E1: the digest stands in bills and answers, so what it names is what runs, or nothing does."""
    monkeypatch.setattr(runtimes, "_installed", lambda name: "1.0")
    pinned = f'[revision.runtime]\npackage = "{engine.ENGINE}==1.0"\n'
    desk.apply(embedded(desk.model(), pinned))
    applied = desk.store.wanted()["chat"]
    supplier = ModelSupplier(NO_MODELS, desk.data, [], Log(io.StringIO(), desk.clock))
    assert asyncio.run(supplier.prepare(applied)).digest == applied.revision.digest
    monkeypatch.setattr(runtimes, "_installed", lambda name: "2.0")
    with pytest.raises(ConfigError, match=r"2\.0 is installed; pip install .*==1\.0"):
        asyncio.run(supplier.prepare(applied))
