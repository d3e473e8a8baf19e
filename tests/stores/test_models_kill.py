"""A pull killed at its worst moment leaves nothing half-visible, and the next one goes on."""

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.stores.registry import ModelStore
from tests.support.file_server import FileServer
from tests.support.tiny_models import Heard, tiny_model

PULL = """
import sys
from pathlib import Path
from headrace.stores.downloads import Silent
from headrace.stores.registry import ModelStore
ModelStore(Path(sys.argv[1]), known={}).pull(sys.argv[2], progress=Silent())
"""


@pytest.mark.slow
def test_a_pull_killed_midway_is_invisible_and_resumes_with_a_range(
    served: FileServer, tmp_path: Path, heard: Heard
) -> None:
    tiny = tiny_model(tmp_path, weight_bytes=4 << 20)
    served.files["/big.gguf"] = tiny.content
    served.hold = True
    root = tmp_path / "models"
    source = f"{served.url}/big.gguf#sha256={tiny.sha256}"
    half_bytes = len(tiny.content) // 2

    with subprocess.Popen([sys.executable, "-c", PULL, str(root), source]) as process:
        try:
            assert served.halfway.wait(60)
            part = root / "staging" / "big" / f"{tiny.sha256}.part"
            wait_for_size(part, half_bytes)
        finally:
            process.kill()

    store = ModelStore(root, known={})
    assert store.models() == []
    assert not list(root.glob("blobs/sha256/*"))
    served.hold = False
    assert store.pull(source, progress=heard).sha256 == tiny.sha256
    assert served.of("GET")[-1].range == f"bytes={half_bytes}-"
    assert [model.name for model in store.models()] == ["big"]
    assert store.verify() == {"big": True}


def wait_for_size(path: Path, size_bytes: int, *, limit_s: float = 30.0) -> None:
    import time

    end_s = time.monotonic() + limit_s
    while not (path.exists() and path.stat().st_size == size_bytes):
        assert time.monotonic() < end_s, "the half that was sent never reached the disk"
        time.sleep(0.01)
