"""Everything that can be reached from an object of ours: attributes, containers, closures, and what coroutines that wait hold."""

import asyncio
import gc
from collections.abc import Iterator
from types import BuiltinFunctionType, CoroutineType, FrameType, FunctionType, ModuleType
from typing import Any

import msgspec

# They lead everywhere, and hold nothing of ours.
_ENDS = (ModuleType, type, BuiltinFunctionType, asyncio.AbstractEventLoop)


def reachable(root: object, *, without: type = ModuleType) -> Iterator[Any]:
    """Each object once, the root first; a module, a class, the globals of a function, and objects `without` are not followed."""
    seen: set[int] = set()
    kept: list[object] = []  # an id is free again once its object has gone
    ahead: list[object] = [root]
    while ahead:
        one = ahead.pop()
        if id(one) in seen or isinstance(one, (*_ENDS, without)):
            continue
        seen.add(id(one))
        kept.append(one)
        yield one
        ahead += _held(one)


def _held(one: object) -> list[object]:
    match one:
        case msgspec.Struct():  # most are kept from the collector, and so from `gc`
            return [getattr(one, name) for name in one.__struct_fields__]
        case FunctionType():
            cells = [cell.cell_contents for cell in one.__closure__ or () if cell is not None]
            return [*cells, *(one.__defaults__ or ()), *(one.__kwdefaults__ or {}).values()]
        case asyncio.Task():  # its callbacks lead to who waits for it
            return [one.get_coro()]
        case CoroutineType():
            return [*([one.cr_frame] if one.cr_frame else []), *([one.cr_await] if one.cr_await else [])]
        case FrameType():
            return list(one.f_locals.values())
        case _:
            return gc.get_referents(one)
