"""The embedded engine's settings: what becomes of them, and what they never show."""

from typing import Any

import msgspec
import pytest
import xllamacpp

from headrace.core.fleet import Task
from headrace.engines import embedded


def settings(task: Task = Task.CHAT, **changed: Any) -> embedded.EngineSettings:
    given: dict[str, Any] = {
        "model_path": "/models/a.gguf",
        "model_name": "a",
        "task": task,
        "slots": 4,
        "context_tokens": 4096,
        "threads": 1,
        "api_key": "secret-key",
    }
    return embedded.EngineSettings(**(given | changed))


def test_the_context_is_given_to_each_slot_and_not_divided_among_them() -> None:
    parameters = embedded.common_parameters(settings())
    assert parameters["n_ctx"] == 4 * 4096
    assert parameters["n_parallel"] == 4


def test_an_embedding_fits_one_batch() -> None:
    """llama.cpp computes an embedding in one micro-batch and fails on a longer input."""
    parameters = embedded.common_parameters(settings(Task.EMBEDDINGS))
    assert parameters["n_ubatch"] == parameters["n_ctx"] // parameters["n_parallel"] == 512
    assert parameters["embedding"] is True
    assert embedded.request_tokens_max(Task.EMBEDDINGS, 300) == 300


def test_nothing_of_one_prompt_is_kept_where_another_slot_could_find_it() -> None:
    parameters = embedded.common_parameters(settings())
    assert parameters["cache_ram_mib"] == 0
    assert parameters["kv_unified"] is False
    assert parameters["cache_idle_slots"] is False


def test_the_engine_listens_on_loopback_with_a_key_and_without_side_doors() -> None:
    parameters = embedded.common_parameters(settings())
    assert parameters["hostnames"] == ["127.0.0.1"]
    assert parameters["api_keys"] == ["secret-key"]
    assert not any(parameters[name] for name in ("ui", "endpoint_slots", "endpoint_props", "cors_origins"))


@pytest.mark.parametrize("task", list(Task))
def test_every_parameter_exists_in_the_library_and_keeps_its_value(task: Task) -> None:
    parameters = xllamacpp.CommonParams()
    for name, value in embedded.common_parameters(settings(task)).items():
        *path, field = name.split(".")
        target = parameters
        for step in path:
            target = getattr(target, step)
        assert hasattr(target, field), name
        setattr(target, field, value)
        assert getattr(target, field) == value, name


def test_settings_travel_on_one_line_and_hide_the_key() -> None:
    line = msgspec.json.encode(settings(model_name="a\nb"))
    assert b"\n" not in line
    assert msgspec.json.decode(line, type=embedded.EngineSettings) == settings(model_name="a\nb")
    assert "secret-key" not in repr(settings())


def test_at_least_one_thread_is_used_and_one_core_left() -> None:
    assert embedded.default_threads() >= 1
