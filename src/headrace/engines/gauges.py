"""What does an engine say of itself? Its own metrics, by the names of its dialect, in the words that all share.

`requests_processing` and `requests_deferred` are requests in work and waiting inside it, `kv_use` the share of its KV cache
that is in use, and `prompt_tokens_total`, `tokens_predicted_total` and `prompt_tokens_cached_total` count since it began.
Whatever else it says without labels keeps its own name.
"""

import math
from collections.abc import Mapping

# Engines that were renamed between releases have both names; the last one that it says counts.
_NAMES: dict[str, dict[str, str]] = {
    "vllm": {
        "vllm:num_requests_running": "requests_processing",
        "vllm:num_requests_waiting": "requests_deferred",
        "vllm:gpu_cache_usage_perc": "kv_use",
        "vllm:kv_cache_usage_perc": "kv_use",
        "vllm:prompt_tokens_total": "prompt_tokens_total",
        "vllm:generation_tokens_total": "tokens_predicted_total",
        "vllm:prefix_cache_hits_total": "prompt_tokens_cached_total",
    },
    "sglang": {
        "sglang:num_running_reqs": "requests_processing",
        "sglang:num_queue_reqs": "requests_deferred",
        "sglang:token_usage": "kv_use",
        "sglang:prompt_tokens_total": "prompt_tokens_total",
        "sglang:generation_tokens_total": "tokens_predicted_total",
        "sglang:cached_tokens_total": "prompt_tokens_cached_total",
    },
    "openai": {
        "tgi_batch_current_size": "requests_processing",
        "tgi_queue_size": "requests_deferred",
        "tgi_request_generated_tokens_sum": "tokens_predicted_total",
        "tgi_request_input_length_sum": "prompt_tokens_total",
    },
    "scripted": {
        "scripted_requests_running": "requests_processing",
        "scripted_requests_waiting": "requests_deferred",
        "scripted_kv_use": "kv_use",
        "scripted_prompt_tokens_total": "prompt_tokens_total",
        "scripted_generated_tokens_total": "tokens_predicted_total",
    },
}


def read(text: str, dialect: str) -> dict[str, float]:
    """From the Prometheus text format. Series of one name (models, processes of the engine) are summed; of shares the
    largest counts."""
    names = _NAMES.get(dialect, {})
    found: dict[str, float] = {}
    for name, value in _samples(text, labelled=names):
        word = names.get(name) or name.rpartition(":")[2]
        if word == "kv_use":
            found[word] = max(found.get(word, 0.0), value)
        elif name in names:
            found[word] = found.get(word, 0.0) + value
        else:
            found[word] = value
    return found


def _samples(text: str, *, labelled: Mapping[str, str]) -> list[tuple[str, float]]:
    """Name and value of each sample that has no labels, or a name that is known."""
    samples = []
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        if brace:
            # A label's value may hold blanks and braces; a sample ends with its number, and perhaps a time.
            numbers = rest.rpartition("}")[2].split()
        else:
            name, _, rest = line.partition(" ")
            numbers = rest.split()
        if not name or name.startswith("#") or (brace and name not in labelled) or not numbers:
            continue
        try:
            value = float(numbers[0])
        except ValueError:
            continue
        if math.isfinite(value):  # the format has NaN and Inf, which say nothing that can be counted with
            samples.append((name, value))
    return samples
