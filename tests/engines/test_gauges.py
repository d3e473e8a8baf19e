"""What engines say of themselves, each in its own names, read in the words that all share."""

from headrace.engines import gauges


def test_gauges_are_read_without_prefix_labels_and_comments() -> None:
    text = """# HELP llamacpp:requests_processing Number of requests
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 3
llamacpp:prompt_tokens_total 1.5e+06
other{label="x"} 4
broken line here
empty
llamacpp:tokens_predicted_total NaN
llamacpp:kv_cache_usage_ratio +Inf
plain 7

"""
    assert gauges.read(text, "embedded") == {
        "requests_processing": 3.0,
        "prompt_tokens_total": 1.5e6,
        "plain": 7.0,
    }


def test_the_series_of_several_models_and_processes_are_one_engines() -> None:
    text = """vllm:num_requests_running{engine="0",model_name="a } b"} 2.0
vllm:num_requests_running{engine="1",model_name="a } b"} 3.0 1700000000000
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
vllm:e2e_request_latency_seconds_bucket{le="0.3"} 12
vllm:num_requests_waiting{engine="0"}
"""
    assert gauges.read(text, "vllm") == {"requests_processing": 5.0, "kv_use": 0.75}


def test_every_engine_that_we_start_says_whether_it_is_at_work() -> None:
    """Without that no hang could be told from idleness."""
    texts = {
        "sglang": 'sglang:num_running_reqs{model_name="m"} 1',
        "openai": "tgi_batch_current_size 1",
        "scripted": "scripted_requests_running 1",
        "embedded": "llamacpp:requests_processing 1",
        "llama.cpp": "llamacpp:requests_processing 1",
    }
    assert all(gauges.read(text, dialect)["requests_processing"] == 1.0 for dialect, text in texts.items())
