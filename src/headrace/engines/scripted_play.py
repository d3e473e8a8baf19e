"""Who runs in the scripted engine and who waits; one execution plays one plan on its connection.

Callbacks on the event loop, without a task per request: with zero delays the engine must not be what a benchmark
measures.
"""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Protocol

import msgspec

from headrace.core.clock import Clock
from headrace.core.errors import HeadraceError
from headrace.engines import scripted_answer, scripted_faults, scripted_question
from headrace.engines.scripted_cache import PrefixCache
from headrace.engines.scripted_faults import Rule, Scope
from headrace.engines.scripted_plan import Ending, Plan
from headrace.engines.scripted_question import Endpoint, Question, Traces

OWNER = "headrace-scripted"
KILLED_STATUS = 137
_STANDARD_ERROR = 2


class Client(Protocol):
    """The connection that an execution writes to."""

    loop: asyncio.AbstractEventLoop
    is_paused: bool

    def write(self, data: bytes) -> None: ...

    def answered(self, *, idle_close_s: float | None = None) -> None:
        """The answer is written; the connection may carry the next."""
        ...

    def unsent_bytes(self) -> int:
        """Bytes of the answer that have not reached the client's machine."""
        ...

    def end(self, *, is_reset: bool) -> None:
        """Ends the connection: by a reset, or by a FIN after what was written."""
        ...


@dataclass(frozen=True, slots=True)
class Settings:
    """What one engine is.

    Attributes:
        port: 0 takes a free one.
        owner: `owned_by` of its models, by which a gateway may tell what kind of server it is.
        slots: Requests at once; more wait inside, without bound.
        ttft_s, itl_s: Time to the first token, and between tokens.
        tokens: Natural length of an answer.
        answers: What is said instead, by what stands in the prompt: the first key that does; "" stands in every one.
        prefix_cache_tokens: What its prefix cache holds; 0 for none.
        prefill_tokens_per_s: How fast it reads what is not cached, before the first token; 0 takes no time.
        first_word: The number of the word that its answers begin with.
        loading_s: It answers 503 for this long after it began to listen.
        api_key: What callers must present; "" lets everybody ask.
        log: Gets one JSON line per execution.
    """

    host: str = "127.0.0.1"
    port: int = 0
    models: tuple[str, ...] = ("scripted",)
    owner: str = OWNER
    slots: int = 64
    ttft_s: float = 0.0
    itl_s: float = 0.0
    tokens: int = 20
    answers: Mapping[str, str] = field(default_factory=dict)
    prefix_cache_tokens: int = 0
    prefill_tokens_per_s: float = 0.0
    faults: tuple[Rule, ...] = ()
    first_word: int = 0
    loading_s: float = 0.0
    api_key: str = field(default="", repr=False)
    log: Path | None = None


class Stats(msgspec.Struct):
    """Counters since the start; requests = rejected + waiting + running + done + aborted + faulted.

    `aborted`: the client left before the end, also of an answer that the script had stalled. `faulted`: the script
    ended it otherwise than by a whole answer. `rejected`: not a request that the engine can answer.
    """

    requests: int = 0
    rejected: int = 0
    running: int = 0
    running_max: int = 0
    waiting: int = 0
    done: int = 0
    aborted: int = 0
    faulted: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Engine:
    """Slots, queue, counters and script, shared by all connections. Owns `stats`, `transports` and the queue."""

    def __init__(self, settings: Settings, clock: Clock, log: IO[bytes] | None) -> None:
        self.settings = settings
        self.clock = clock
        self.stats = Stats()
        self.transports: set[asyncio.Transport] = set()
        self._log = log
        self._models = frozenset(settings.models)
        self._cache = PrefixCache(settings.prefix_cache_tokens) if settings.prefix_cache_tokens else None
        self._queue: dict[Execution, None] = {}  # a dict, as leaving from the middle must be cheap
        self.set_faults(settings.faults)
        if settings.loading_s:
            self._loaded_at_s = clock.now_s() + settings.loading_s

    def set_faults(self, rules: tuple[Rule, ...]) -> None:
        """Replaces the script; `@N` counts from here."""
        self.script = scripted_faults.Script(rules)
        loading_s = self.script.loading_s
        self._loaded_at_s = self.clock.now_s() + loading_s if loading_s else 0.0

    def is_loading(self) -> bool:
        return self._loaded_at_s > 0 and self.clock.now_s() < self._loaded_at_s

    def ask(self, endpoint: Endpoint, body: bytes) -> tuple[Question, Traces, Plan]:
        """What a body asks and how it will be answered. Raises InvalidRequest, ModelNotFound."""
        self.stats.requests += 1
        faults = self.script.next(Scope.INFERENCE)
        try:
            question, traces = scripted_question.read(endpoint, body, models=self._models)
        except HeadraceError:
            self.stats.rejected += 1
            raise
        if self._cache is not None:
            cached = sum(
                self._cache.use(
                    prompt, salt=traces.cache_salt or "", may_read=traces.cache_prompt is not False
                )
                for prompt in scripted_question.prompts(endpoint, body)
            )
            question = msgspec.structs.replace(question, cached_tokens=cached)
        if self.settings.first_word:
            question = msgspec.structs.replace(question, first_word=self.settings.first_word)
        if self.settings.answers and endpoint is not Endpoint.EMBEDDINGS:
            question = msgspec.structs.replace(question, answer=self._answer(endpoint, body))
        plan = scripted_answer.plan(question, tokens=self.settings.tokens, faults=faults)
        return question, traces, self._with_prefill(plan, question)

    def _answer(self, endpoint: Endpoint, body: bytes) -> str | None:
        prompt = b"\n".join(scripted_question.prompts(endpoint, body)).decode()
        return next((text for key, text in self.settings.answers.items() if key in prompt), None)

    def _with_prefill(self, plan: Plan, question: Question) -> Plan:
        """The plan with the time that it takes to read what is not cached."""
        tokens_per_s = self.settings.prefill_tokens_per_s
        if not tokens_per_s:
            return plan
        ttft_s = self.settings.ttft_s if plan.ttft_s is None else plan.ttft_s
        prefill_s = (question.prompt_tokens - question.cached_tokens) / tokens_per_s
        return replace(plan, ttft_s=ttft_s + prefill_s)

    def admit(self, execution: "Execution") -> None:
        """Starts it, now or when a slot is free."""
        if execution.plan.needs_slot and self.stats.running >= self.settings.slots:
            self._queue[execution] = None
            self.stats.waiting += 1
            return
        self._occupy(execution)
        execution.start()

    def leave(self, execution: "Execution", outcome: str) -> None:
        """Takes an execution out, wherever it is; the next one gets its slot."""
        stats = self.stats
        if execution.is_running:
            stats.running -= execution.plan.needs_slot
        else:
            del self._queue[execution]
            stats.waiting -= 1
        stats.done += outcome == "done"
        stats.aborted += outcome == "aborted"
        stats.faulted += outcome == "fault"
        completion_tokens = execution.tokens_done()
        stats.prompt_tokens += execution.question.prompt_tokens
        stats.completion_tokens += completion_tokens
        if self._log is not None:
            self._log.write(msgspec.json.encode(execution.entry(outcome, completion_tokens)) + b"\n")
        if self._queue and stats.running < self.settings.slots:
            following = next(iter(self._queue))
            del self._queue[following]
            stats.waiting -= 1
            self._occupy(following)
            # By the loop: a long queue of instant answers must not become a deep stack.
            following.start_soon()

    def _occupy(self, execution: "Execution") -> None:
        if execution.plan.needs_slot:
            self.stats.running += 1
            self.stats.running_max = max(self.stats.running_max, self.stats.running)

    def metrics(self) -> bytes:
        stats = self.stats
        rows = (
            ("requests_running", "gauge", "Requests in a slot.", stats.running),
            ("requests_waiting", "gauge", "Requests that wait for a slot.", stats.waiting),
            (
                "kv_use",
                "gauge",
                "Share of the slots that hold a request.",
                stats.running / self.settings.slots,
            ),
            ("prompt_tokens_total", "counter", "Prompt tokens of ended requests.", stats.prompt_tokens),
            ("generated_tokens_total", "counter", "Tokens generated.", stats.completion_tokens),
        )
        return "".join(
            f"# HELP scripted_{name} {text}\n# TYPE scripted_{name} {kind}\nscripted_{name} {value}\n"
            for name, kind, text, value in rows
        ).encode()

    def models(self) -> bytes:
        entries = [
            {
                "id": name,
                "object": "model",
                "created": scripted_answer.CREATED_S,
                "owned_by": self.settings.owner,
            }
            for name in self.settings.models
        ]
        return msgspec.json.encode({"object": "list", "data": entries})


class _Nobody:
    """In the place of a client that has left, for work that goes on all the same."""

    is_paused = False

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def answered(self, *, idle_close_s: float | None = None) -> None:
        """There is no connection that could carry the next."""

    def unsent_bytes(self) -> int:
        return 0

    def end(self, *, is_reset: bool) -> None:
        """It has ended already."""


class Execution:
    """One request from its arrival to its end. Owns its position in the plan and its one timer."""

    __slots__ = (
        "_client", "_due_s", "_engine", "_is_played", "_itl_s", "_offset", "_position", "_started_s", "_timer",
        "_ttft_s", "is_ended", "is_running", "plan", "question", "request_id", "traces",
    )  # fmt: skip

    def __init__(
        self,
        engine: Engine,
        client: Client,
        question: Question,
        *,
        traces: Traces,
        plan: Plan,
        request_id: str,
    ) -> None:
        settings = engine.settings
        self.question = question
        self.traces = traces
        self.plan = plan
        self.request_id = request_id
        self.is_running = False
        self.is_ended = False
        self._client = client
        self._engine = engine
        self._ttft_s = settings.ttft_s if plan.ttft_s is None else plan.ttft_s
        self._itl_s = settings.itl_s if plan.itl_s is None else plan.itl_s
        self._position = 0
        self._offset = 0
        self._is_played = False
        self._due_s = self._started_s = self._engine.clock.now_s()
        self._timer: asyncio.Handle | None = None

    def start(self) -> None:
        """It has its slot: the first write is due after the time to the first token."""
        self.is_running = True
        self._due_s = self._engine.clock.now_s()
        pause_s = self._pause_s()
        if pause_s:
            self._step_after(pause_s)
        else:
            self._step()

    def start_soon(self) -> None:
        self.is_running = True
        self._timer = self._client.loop.call_soon(self.start)

    def resume(self) -> None:
        """The connection takes bytes again."""
        if self.is_running and not self._is_played and self._timer is None:
            self._step()

    def abort(self) -> None:
        """The client has left."""
        if self.is_ended:
            return
        if self.plan.is_deaf and self.is_running and not self._is_played:
            self._client = _Nobody(self._client.loop)
            if self._timer is None:
                self._step()
        else:
            self._end("aborted")

    def tokens_done(self) -> int:
        """Tokens generated so far; of a whole answer those for which there was time."""
        work = self.plan.work
        if self._is_played:
            return work.completion_tokens
        if self.plan.is_stream:
            events = min(max(0, self._position - 1), work.token_events)
            return -(-work.completion_tokens * events // max(1, work.token_events))
        elapsed_s = self._engine.clock.now_s() - self._due_s + self._pause_s() - self._ttft_s
        if not self.is_running or elapsed_s < 0 or not work.steps:
            return 0
        steps = min(work.steps, 1 + int(elapsed_s / self._itl_s)) if self._itl_s else work.steps
        return work.completion_tokens * steps // work.steps

    def entry(self, outcome: str, completion_tokens: int) -> dict[str, object]:
        """The line of the execution log: what was asked and how it ended, never prompt, answer or key."""
        return {
            "id": self.request_id,
            "endpoint": self.question.endpoint.value,
            "model": self.question.model,
            "stream": self.question.is_stream,
            "outcome": outcome,
            "prompt_tokens": self.question.prompt_tokens,
            "completion_tokens": completion_tokens,
            **(
                {"cached_tokens": self.question.cached_tokens}
                if self._engine.settings.prefix_cache_tokens
                else {}
            ),
            "seconds": round(self._engine.clock.now_s() - self._started_s, 6),
            **msgspec.to_builtins(self.traces),
        }

    def _pause_s(self) -> float:
        """How long the next write comes after the last one."""
        plan = self.plan
        if not plan.needs_slot:
            return 0.0
        if self._position == 0:
            whole_s = 0.0 if plan.is_stream else max(0, plan.work.steps - 1) * self._itl_s
            return self._ttft_s + whole_s
        event = self._position - 1
        is_next_token = 0 < event < plan.work.token_events and event % plan.work.step_events == 0
        return self._itl_s if is_next_token and not self._offset else 0.0

    def _step_after(self, pause_s: float) -> None:
        # From the last due time, not from now, so that lateness doesn't add up.
        self._due_s += pause_s
        delay_s = self._due_s - self._engine.clock.now_s()
        self._timer = self._client.loop.call_later(max(0.0, delay_s), self._step)

    def _step(self) -> None:
        """Plays the next write and arranges for the one after it: each event is a write of its own."""
        self._timer = None
        if self._client.is_paused:
            return
        writes = self.plan.writes
        if self._position < len(writes):
            self._write_next()
            if self._position == 1 and len(writes) > 1:
                self._write_next()  # the head travels with the first event
        if self._position >= len(writes):
            self._finish()
        elif pause_s := self._pause_s():
            self._step_after(pause_s)
        else:
            self._timer = self._client.loop.call_soon(self._step)

    def _write_next(self) -> None:
        data, bytes_max = self.plan.writes[self._position], self.plan.write_bytes_max
        if bytes_max and len(data) - self._offset > bytes_max:
            self._client.write(data[self._offset : self._offset + bytes_max])
            self._offset += bytes_max
            return
        if self._position == len(self.plan.writes) - 1:
            self._settle()
        self._client.write(data[self._offset :] if self._offset else data)
        self._position += 1
        self._offset = 0

    def _settle(self) -> None:
        """Counts and logs a whole answer, before the last write: a client that has seen the end finds it counted.

        A stalled answer keeps its slot until the client leaves; one that is only left open doesn't.
        """
        self._is_played = True
        ending, is_fault = self.plan.ending, self.plan.is_fault
        if ending is Ending.KEEP or (ending is Ending.HOLD and not is_fault):
            self._end("fault" if is_fault else "done")

    def _finish(self) -> None:
        """All is written; the plan says what becomes of the connection."""
        self._timer = None
        self._is_played = True
        client, ending = self._client, self.plan.ending
        if ending is Ending.KEEP:
            client.answered(idle_close_s=self.plan.idle_close_s)
        elif ending is Ending.HOLD:
            pass
        elif client.unsent_bytes():
            # A reset or an exit would discard what the client should have seen before it.
            self._timer = client.loop.call_later(0.002, self._finish)
        else:
            self._end("fault")
            if ending is Ending.EXIT:
                os.write(_STANDARD_ERROR, self.plan.last_words)
                os._exit(KILLED_STATUS)
            client.end(is_reset=ending is Ending.RESET)

    def _end(self, outcome: str) -> None:
        self.is_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._engine.leave(self, outcome)
