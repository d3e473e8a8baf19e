"""The default models for tests that need real ones, pulled once per machine and shared by all runs."""

import os
from pathlib import Path

from headrace.stores.downloads import Silent
from headrace.stores.registry import ModelStore

DEFAULTS = ("smollm2-135m-instruct", "all-minilm-l6-v2")


def shared_root() -> Path:
    """$HEADRACE_TEST_MODELS, else a folder in the user's cache; give it to programs as the `models` of a data folder."""
    chosen = os.environ.get("HEADRACE_TEST_MODELS")
    return Path(chosen) if chosen else Path("~/.cache/headrace-test-models").expanduser()


def shared_store() -> ModelStore:
    """A store that holds both default models. Processes that want them at once wait for the first one's pull."""
    store = ModelStore(shared_root())
    for name in DEFAULTS:
        if store.get(name) is None:
            store.pull(name, progress=Silent())  # locked per name by the store itself
    return store
