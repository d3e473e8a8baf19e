"""Totals are read from what engines of each kind publish."""

import pytest

from headrace.engines.counters import COUNTERS, totals

VLLM = """\
# HELP vllm:prompt_tokens_total Number of prefill tokens processed.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{engine="0",model_name="a b{c}"} 120.0
vllm:prompt_tokens_total{engine="1",model_name="a"} 3e1 1767225600000
vllm:prompt_tokens_total_created 7
vllm:generation_tokens_total{engine="0",model_name="a"} 41.0
"""
LLAMA = "llamacpp:prompt_tokens_total 12\nllamacpp:tokens_predicted_total 34\n"


def test_series_of_one_name_are_summed_and_longer_names_are_others() -> None:
    assert totals(VLLM, COUNTERS["vllm"]) == (150, 41)
    assert totals(LLAMA, COUNTERS["embedded"]) == (12, 34)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "llamacpp:prompt_tokens_total 12\n",
        LLAMA.replace("34", "many"),
        LLAMA.replace("34", "NaN"),
        LLAMA.replace("34", "-1"),
        LLAMA.replace(" 34", " "),
    ],
)
def test_an_engine_that_says_less_counts_nothing(text: str) -> None:
    assert totals(text, COUNTERS["llama.cpp"]) is None
