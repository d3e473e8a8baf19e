"""What does an engine count by itself? Its totals of tokens, out of its own metrics, by the names of its dialect."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CounterNames:
    """Names in the Prometheus text format; series of one name (models, processes of the engine) are summed."""

    prompt: str
    completion: str


_LLAMA = CounterNames("llamacpp:prompt_tokens_total", "llamacpp:tokens_predicted_total")

COUNTERS: dict[str, CounterNames] = {
    "vllm": CounterNames("vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    "sglang": CounterNames("sglang:prompt_tokens_total", "sglang:generation_tokens_total"),
    "llama.cpp": _LLAMA,
    "embedded": _LLAMA,
    "scripted": CounterNames("scripted_prompt_tokens_total", "scripted_generated_tokens_total"),
}
"""By dialect (engines/openai_compatible.py). Another one counts nothing that we could read."""


def totals(text: str, names: CounterNames) -> tuple[int, int] | None:
    """Prompt and completion tokens since the engine began; None where it says neither or no number."""
    prompt = _sum(text, names.prompt)
    completion = _sum(text, names.completion)
    return None if prompt is None or completion is None else (prompt, completion)


def _sum(text: str, name: str) -> int | None:
    found: float | None = None
    for line in text.splitlines():
        if not line.startswith(name):
            continue
        rest = line[len(name) :]
        if rest[:1] not in ("{", " "):
            continue  # a longer name
        # A label's value may hold blanks and braces; a sample ends with its number, and perhaps a time in milliseconds.
        numbers = rest.rpartition("}")[2].split()
        try:
            found = (found or 0.0) + float(numbers[0])
        except (IndexError, ValueError):
            return None
    return None if found is None or not 0 <= found < 2**53 else int(found)
