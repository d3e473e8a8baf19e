"""Where does the prompt template of an applied version lie? Among the artifacts, and its text with the version, which is backed up."""

import tempfile
from pathlib import Path

from headrace.core.deployments import Artifact
from headrace.stores.artifacts import ArtifactStore


def keep(artifacts: ArtifactStore, artifact: Artifact, text: str, *, root: Path) -> Path:
    """The template's file, put there where it isn't.

    Args:
        text: As it was applied.
        root: Of the model store: what is moved into it is written beside it.
    """
    if (found := artifacts.path(artifact)) is not None:
        return found
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".template-") as folder:
        staged = Path(folder) / artifact.sha256
        staged.write_text(text, encoding="utf-8", newline="")
        artifacts.commit(artifact, {artifact.sha256: staged}, claims=())
    found = artifacts.path(artifact)
    assert found is not None, "just stored"
    return found
