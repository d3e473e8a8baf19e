"""What is written in one turn of the loop leaves at its end, once for each connection."""

import asyncio

from headrace.engines.outbox import Outbox


class Recorder:
    def __init__(self, name: str, order: list[str]) -> None:
        self.name = name
        self.order = order

    def flush(self) -> None:
        self.order.append(self.name)


def test_everything_written_in_a_turn_leaves_together_in_order() -> None:
    async def turns() -> list[str]:
        order: list[str] = []
        outbox = Outbox()
        for name in ("first", "second"):
            outbox.add(Recorder(name, order))
        order.append("still this turn")
        await asyncio.sleep(0)
        outbox.add(Recorder("third", order))
        await asyncio.sleep(0)
        return order

    assert asyncio.run(turns()) == ["still this turn", "first", "second", "third"]


def test_what_is_written_while_flushing_is_not_lost() -> None:
    """A flush may find its connection ready for more."""

    class Again(Recorder):
        def flush(self) -> None:
            super().flush()
            if self.order.count(self.name) == 1:
                outbox.add(self)

    async def turns() -> list[str]:
        order: list[str] = []
        outbox.add(Again("again", order))
        for _ in range(4):
            await asyncio.sleep(0)
        return order

    outbox = Outbox()
    assert asyncio.run(turns()) == ["again", "again"]


def test_a_flush_that_raises_silences_nobody_else() -> None:
    """What was written behind it leaves in the next turn, and the loop reports the bug."""

    class Broken(Recorder):
        def flush(self) -> None:
            raise RuntimeError("a bug")

    async def turns() -> tuple[list[str], list[str]]:
        order: list[str] = []
        reports: list[str] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reports.append(str(context["exception"]))
        )
        outbox = Outbox()
        for connection in (Recorder("first", order), Broken("broken", order), Recorder("last", order)):
            outbox.add(connection)
        for _ in range(3):
            await asyncio.sleep(0)
        return order, reports

    assert asyncio.run(turns()) == (["first", "last"], ["a bug"])
