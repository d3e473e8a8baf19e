"""What is asked of a simulated fleet? Requests as a trace or a workload's plan has them, and what is promised to them."""

from dataclasses import dataclass
from typing import NamedTuple


class Work(NamedTuple):
    """One request.

    Attributes:
        cached_tokens: Of its prompt, wherever it runs: a trace that says so is taken at its word.
        prefix, prefix_tokens: What its prompt begins with, by a name, and how long that is; "" for nothing that others share.
        deadline_s: How long its caller waits for the whole of it; 0.0 for as long as the service lets it.
        cancel_after_s, cancel_after_tokens: When its caller leaves; 0 for never.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    prefix: str = ""
    prefix_tokens: int = 0
    deadline_s: float = 0.0
    cancel_after_s: float = 0.0
    cancel_after_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Promise:
    """What counts as served well, and how long requests wait before they are turned away.

    Attributes:
        ttft_s, tpot_s, total_s: At most, from the arrival; between two tokens in the mean; to the end.
        queue_max, wait_max_s: The bounds of the gateway's queue.
    """

    ttft_s: float = 2.0
    tpot_s: float = 0.1
    total_s: float = float("inf")
    queue_max: int = 1000
    wait_max_s: float = 30.0
