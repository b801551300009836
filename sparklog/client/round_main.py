"""The process that does one round of maintenance for another (round_process.py).

Invariants: it ends when its parent has: the round breaks off between two steps of some megabytes, and if that
    takes too long, as on a storage that hangs, the process ends all the same, which is as good as a crash.
    It takes the machine's idle time: lowest priority, idle class of I/O where Linux has it.
Not here: what a round does (sparklog/maintenance).
Concurrency: a thread waits for the parent's end.
"""

import ctypes
import os
import platform
import signal
import sys
import threading

_END_SECONDS = 5.0
_LOWEST = 19
# Of ioprio_set, which has no function in the C library: Linux numbers its calls by machine.
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "riscv64": 30}
_WHO_PROCESS, _IDLE_CLASS, _CLASS_SHIFT = 1, 3, 13


def give_way() -> None:
    """Work only when nobody else wants to. Threads that are started later inherit it."""
    os.nice(_LOWEST)
    number = _IOPRIO_SET.get(platform.machine())
    if sys.platform == "linux" and number is not None:
        # A kernel without it, or a container that forbids it, says no: then the rate alone bounds us.
        ctypes.CDLL(None).syscall(number, _WHO_PROCESS, 0, _IDLE_CLASS << _CLASS_SHIFT)


def end_with_parent(stop: threading.Event) -> None:
    """Set the event at the end of what the parent writes, which is when it ends; and end ourselves soon."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        stop.set()
        threading.Event().wait(_END_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def main() -> None:
    """One round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which is meant for the parent
    give_way()  # before the first import that starts threads
    import msgspec

    from sparklog.client.log import open_log
    from sparklog.client.round_process import (
        MAX_MESSAGE,
        RoundAnswer,
        RoundRequest,
    )
    from sparklog.maintenance import ROUND, Terms, alone, maintain

    request = msgspec.json.decode(_first_line(), type=RoundRequest)
    stop = threading.Event()
    end_with_parent(stop)
    try:
        with (
            open_log(
                request.root,
                create=False,
                storage_options=request.storage_options,
                cluster_id=request.cluster_id,
            ) as log,
            alone(log.metadata, ROUND),
        ):
            report = maintain(
                log.metadata,
                log.clock,
                Terms(defaults=request.defaults),
                steps=request.steps,
                budget=request.budget,
                is_stopped=stop.is_set,
                rest_ms=lambda ms: _rest(stop, ms),
            )
        answer = RoundAnswer(report=report)
    except Exception as error:  # noqa: BLE001 - the parent is told, whatever it is
        is_busy = getattr(error, "code", "") == "MAINTENANCE_RUNNING"
        answer = RoundAnswer(error=str(error)[:MAX_MESSAGE], is_busy=is_busy)
    os.write(1, msgspec.json.encode(answer) + b"\n")


def _rest(stop: threading.Event, duration_ms: float) -> None:
    stop.wait(duration_ms / 1000)


def _first_line() -> bytes:
    """Without reading beyond it: what comes after is the parent's end."""
    data = bytearray()
    while not data.endswith(b"\n"):
        more = os.read(0, 1)
        if not more:
            raise SystemExit(1)  # the parent has ended before it has said anything
        data += more
    return bytes(data)


if __name__ == "__main__":
    main()
