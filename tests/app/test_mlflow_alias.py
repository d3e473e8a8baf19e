"""An alias of a registry is a name that moves: it is looked up when somebody plans, and changes nothing that was applied."""

from pathlib import Path

import pytest

from headrace.app.planning import Planner
from headrace.config import Config, EngineConfig, MlflowConfig, ModelsConfig
from headrace.config import deployments as files
from headrace.core.clock import SystemClock
from headrace.policies.memory_plan import MIB
from headrace.policies.planning import Machine
from headrace.stores.deployments import open_deployments
from headrace.stores.downloads import Silent
from tests.support.mlflow import mlflow_server
from tests.support.tiny_models import tiny_model

TEXT = """
[deployment]
name = "chat"
engine = "embedded"
[revision]
source = "mlflow:models:/chat@champion!model.gguf"
"""


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_moved_alias_is_a_candidate_and_no_change_of_what_was_applied(tmp_path: Path) -> None:
    """E1, on a real MLflow server."""
    models = [tiny_model(tmp_path, weight_bytes=size) for size in (4096, 8192)]
    folder = tmp_path / "mlflow"
    folder.mkdir()
    file = files.given(TEXT, {}, file="chat.toml")
    with mlflow_server(folder) as server:
        config = Config(
            engine=EngineConfig(chat_model="", embedding_model=""),
            models=ModelsConfig(mlflow=MlflowConfig(url=server.url, allow_http=True)),
        )
        clock = SystemClock()
        store = open_deployments(tmp_path, clock=clock, actor="cli:me")
        planner = Planner(
            tmp_path, config, store, clock=clock, progress=Silent(), machine=Machine(1000 * MIB)
        )
        first, second = (server.register("chat", {"model.gguf": model.content}) for model in models)
        server.point("chat", alias="champion", version=first)
        planner.apply([file])
        applied = store.version("chat", 1)
        assert applied.revision.weights is not None
        assert applied.revision.weights.sha256 == models[0].sha256
        assert applied.revision.source == (
            f"mlflow:models:/chat@champion!model.gguf = mlflow:models:/chat/{first}!model.gguf"
        )
        assert planner.plan([file])[0].action == "unchanged"
        server.point("chat", alias="champion", version=second)
        assert store.wanted()["chat"] == applied
        (plan,) = planner.plan([file])
        moved = {change.key: (change.old, change.new) for change in plan.changes}
        assert moved["resolved.weights"] == (models[0].sha256, models[1].sha256)
        assert (plan.action, plan.version, plan.refusals) == ("change", 2, ())
        store.close()
