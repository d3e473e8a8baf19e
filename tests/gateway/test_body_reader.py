"""What a child that misbehaves costs: one body each time, and never the gateway."""

import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from headrace.core.clock import SystemClock
from headrace.core.errors import HeadraceError, InternalError, InvalidRequest, Saturated
from headrace.core.request import Endpoint
from headrace.gateway import parser_process
from headrace.gateway.bodies import PARSER, BodyReader
from headrace.gateway.walk import Walk
from headrace.protocols.openai import ParsedBody

CHAT = Endpoint.CHAT_COMPLETIONS
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()


def python(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


def with_reader(use: Callable[[BodyReader], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            reader = BodyReader(clock=SystemClock(), **options)
            keeper = tasks.create_task(_keep(reader))
            await asyncio.sleep(0)
            await use(reader)
            assert reader.count == 0
            keeper.cancel()

    asyncio.run(run())


async def _keep(reader: BodyReader) -> None:
    async with asyncio.TaskGroup() as tasks:
        reader.open(tasks)
        await asyncio.Event().wait()


async def outcome(reader: BodyReader, body: bytes = BODY, *, in_s: float = 20.0) -> object:
    try:
        return await reader.parse(CHAT, body, deadline_s=SystemClock().now_s() + in_s)
    except HeadraceError as error:
        return type(error)


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit(1)", Saturated),
        ("import os; os.read(0, 1); os.kill(os.getpid(), 9)", Saturated),
        ("import os, signal; os.read(0, 1); os.kill(os.getpid(), signal.SIGPROF)", InvalidRequest),
    ],
    ids=["ends at once", "killed", "too much CPU time"],
)
def test_each_death_settles_one_body(program: str, expected: type[HeadraceError]) -> None:
    async def use(reader: BodyReader) -> None:
        assert await asyncio.gather(*(outcome(reader) for _ in range(3))) == [expected] * 3

    with_reader(use, command=python(program))


def test_a_command_that_can_not_be_run_refuses_whoever_waits() -> None:
    async def use(reader: BodyReader) -> None:
        assert await asyncio.gather(*(outcome(reader) for _ in range(3))) == [Saturated] * 3
        assert await outcome(reader) is Saturated

    with_reader(use, command=("/nonexistent/parser",))


def test_a_child_that_hangs_is_killed_and_those_behind_it_are_refused_in_time() -> None:
    async def use(reader: BodyReader) -> None:
        assert await asyncio.gather(*(outcome(reader) for _ in range(3))) == [Saturated] * 3
        while reader.count:  # noqa: ASYNC110 -- the death of a process is no event of ours
            await asyncio.sleep(0.01)

    with_reader(use, command=python("import time; time.sleep(60)"), wait_s_max=0.2)


def test_a_child_that_ended_for_being_idle_is_replaced_without_a_word() -> None:
    """The body came in the moment in which the child gave up waiting for one."""

    async def use(reader: BodyReader) -> None:
        parsed = await outcome(reader)
        assert getattr(parsed, "model", None) == "m"

    idle_once = (
        "import os, sys\n"
        "mark = sys.argv[1]\n"
        "if os.path.exists(mark): os.execv(sys.argv[2], sys.argv[2:])\n"
        "open(mark, 'w').close(); os.read(0, 1)\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        with_reader(use, command=(*python(idle_once), f"{folder}/mark", *PARSER))


def test_a_bug_in_the_parser_is_told_as_ours_and_the_child_lives_on() -> None:
    async def use(reader: BodyReader) -> None:
        assert await outcome(reader) is InternalError
        assert await outcome(reader) is InternalError

    broken = (
        "from headrace.gateway import parser_process\n"
        "def bug(*_): raise ZeroDivisionError\n"
        "parser_process.openai.parse_body = bug\n"
        "parser_process.main()\n"
    )
    with_reader(use, command=python(broken))


def test_a_body_that_wants_more_memory_than_there_is_is_refused() -> None:
    async def use(reader: BodyReader) -> None:
        assert await outcome(reader) is InvalidRequest

    hungry = (
        "from headrace.gateway import parser_process\n"
        "def bug(*_): raise MemoryError\n"
        "parser_process.openai.parse_body = bug\n"
        "parser_process.main()\n"
    )
    with_reader(use, command=python(hungry))


@pytest.mark.slow
def test_the_child_ends_itself_when_a_body_costs_too_much() -> None:
    async def use(reader: BodyReader) -> None:
        assert await outcome(reader) is InvalidRequest

    endless = (
        "from headrace.gateway import parser_process\n"
        "def endless(*_):\n    while True: pass\n"
        "parser_process.openai.parse_body = endless\n"
        "parser_process.CPU_S_MAX = 0.2\n"
        "parser_process.main()\n"
    )
    with_reader(use, command=python(endless))


def test_nobody_is_told_of_a_body_that_was_wrong_after_its_caller_left() -> None:
    """An exception that nobody awaits would be a line in the log for each such caller, and look like a bug of ours."""
    reported: list[dict[str, Any]] = []

    async def use(reader: BodyReader) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

        async def ask() -> None:
            await reader.parse(CHAT, b"{}", deadline_s=SystemClock().now_s() + 20)

        await outcome(reader)  # there is a child now, which gets the next one at once
        walk = Walk(ask(), on_end=lambda: None)
        walk.start()
        walk.cancel()
        while reader.count:  # noqa: ASYNC110 -- what nobody awaits has no event
            await asyncio.sleep(0.01)
        assert isinstance(await outcome(reader), ParsedBody)
        gc.collect()

    with_reader(use)
    assert reported == []


def test_descriptions_survive_the_journey() -> None:
    refused = parser_process.Refused("no", "n")
    assert parser_process.decode_result(parser_process.encode_result(refused)) == refused
