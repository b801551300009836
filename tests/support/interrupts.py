"""Ctrl-C wherever it can arrive, one place after the other.

Python handles signals after a call, at the start of a function and at the end of a loop's turn, and nowhere
else; so do these.
"""

import dis
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FrameType
from typing import Any

_HANDLED_AFTER = ("CALL", "JUMP_BACKWARD")


def interrupt_everywhere(act: Callable[[], object], *modules: str) -> Iterator[str]:
    """Call `act` again and again, interrupted at the next place in these modules each time, and say where.

    Ends when `act` comes to its end. What it raises instead of KeyboardInterrupt goes to the caller.
    """
    number = 0
    while True:
        where = _interrupted(act, modules, number)
        if where is None:
            return
        yield where
        number += 1


def _interrupted(act: Callable[[], object], modules: tuple[str, ...], number: int) -> str | None:
    places = _Places(modules, number)
    before = sys.gettrace()
    sys.settrace(places.trace)
    try:
        act()
    except KeyboardInterrupt:
        return places.where
    finally:
        sys.settrace(before)
    return None


class _Places:
    """Counts them, and interrupts at one."""

    def __init__(self, modules: tuple[str, ...], number: int) -> None:
        self.where = ""
        self._modules = modules
        self._left = number
        self._last: dict[FrameType, int] = {}  # the instruction before, by its place
        self._names: dict[CodeType, dict[int, str]] = {}

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_globals.get("__name__") not in self._modules or self.where:
            return None
        frame.f_trace_opcodes = True
        if event == "call":
            self._pass(frame)
        if event == "opcode":
            last, self._last[frame] = self._last.get(frame), frame.f_lasti
            if last is not None and self._name(frame, last).startswith(_HANDLED_AFTER):
                self._pass(frame)
        return self.trace

    def _pass(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left < 0:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
            raise KeyboardInterrupt

    def _name(self, frame: FrameType, place: int) -> str:
        code = frame.f_code
        if code not in self._names:
            self._names[code] = {one.offset: one.opname for one in dis.get_instructions(code)}
        return self._names[code].get(place, "")


def is_free(lock: "threading.Lock | threading.RLock") -> bool:
    """May another thread have it?"""
    with ThreadPoolExecutor(1) as other:

        def take() -> bool:
            if not lock.acquire(blocking=False):
                return False
            lock.release()
            return True

        return other.submit(take).result()
