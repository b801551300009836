"""The process that does one round of maintenance for another (rounds.py).

Invariants: it ends when its parent has, and its guardian, if it has one: the round breaks off between two
    steps of some megabytes, and if that takes too long, as on a storage that hangs, the process ends all the
    same, which is as good as a crash. It takes the machine's idle time, unless it is urgent: lowest priority,
    idle class of I/O where Linux has it. What came of the round is noted on the machine by the process itself
    (rounds.py): nobody may be left to hear it.
Not here: what a round does (sparklog/maintenance).
Concurrency: a thread waits for the end of both.
"""

import contextlib
import ctypes
import logging
import os
import platform
import select
import signal
import sys
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparklog.client.log import SparkLog
    from sparklog.client.rounds import RoundAnswer, RoundRequest, RoundStates

_END_SECONDS = 5.0
_LOWEST = 19
_URGENT = "urgent"  # rounds.py, which is imported later
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


def end_with_parent(stop: threading.Event, guardian: int | None = None) -> None:
    """Set the event when the parent asks for it, or has ended, and so has the guardian (a descriptor of a
    process); and end ourselves soon.
    """

    def wait() -> None:
        is_asked = bool(os.read(0, 4096))
        while os.read(0, 4096):
            pass
        if guardian is not None and not is_asked:
            select.select([guardian], [], [])
        stop.set()
        threading.Event().wait(_END_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, name="parent", daemon=True).start()


def main() -> None:
    """One round."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's, which is meant for the parent
    if sys.argv[1:] != [_URGENT]:
        give_way()  # before the first import that starts threads
    import msgspec

    from sparklog.client.rounds import RoundRequest

    request = msgspec.json.decode(_first_line(), type=RoundRequest)
    stop = threading.Event()
    end_with_parent(stop, request.guardian)
    data = msgspec.json.encode(_answer(request, stop)) + b"\n"
    with contextlib.suppress(BrokenPipeError):  # nobody is left to hear it
        os.write(1, data)


def _answer(request: "RoundRequest", stop: threading.Event) -> "RoundAnswer":
    from sparklog.client.log import open_log
    from sparklog.client.rounds import MAX_MESSAGE, RoundAnswer, RoundStates

    try:
        with open_log(
            request.root,
            create=False,
            storage_options=request.storage_options,
            cluster_id=request.cluster_id,
        ) as log:
            states = RoundStates(log.url, log.cluster_id, patience=log.clock)
            held = states.hold_round()
            if held.holder is not None:
                return RoundAnswer(error="another process of this machine does it", is_busy=True)
            try:
                answer = _round(log, request, stop)
            except Exception as error:  # noqa: BLE001 - the parent is told, whatever it is
                is_busy = getattr(error, "code", "") == "MAINTENANCE_RUNNING"
                answer = RoundAnswer(error=str(error)[:MAX_MESSAGE], is_busy=is_busy)
            finally:
                held.release()
            return _noted(answer, request, states, log.clock.now_ms())
    except Exception as error:  # noqa: BLE001 - as above
        return RoundAnswer(error=str(error)[:MAX_MESSAGE])


def _round(log: "SparkLog", request: "RoundRequest", stop: threading.Event) -> "RoundAnswer":
    from sparklog.client.rounds import RoundAnswer
    from sparklog.maintenance import ROUND, alone, maintain

    with alone(log.metadata, ROUND):
        report = maintain(
            log.metadata,
            log.clock,
            request.terms,
            steps=request.steps,
            budget=request.budget,
            is_stopped=stop.is_set,
            rest_ms=lambda ms: _rest(stop, ms),
        )
    return RoundAnswer(report=report)


def _noted(
    answer: "RoundAnswer", request: "RoundRequest", states: "RoundStates", now_ms: int
) -> "RoundAnswer":
    """Note on the machine what came of it; and tell people, if that is asked of us."""
    import msgspec

    from sparklog.client.rounds import ended, found_uncleanable

    usual_ms = request.usual_ms
    if usual_ms is None or not states.outlives_us:
        states.change(lambda state: found_uncleanable(state, answer, now_ms))
        return answer
    before = states.read()
    states.change(
        lambda state: msgspec.structs.replace(ended(state, answer, now_ms, usual_ms), told=answer.problem)
    )
    if answer.problem and answer.problem != before.told:
        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("sparklog.spark").warning("maintenance beside the query: %s", answer.problem)
    return msgspec.structs.replace(answer, is_told=True)


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
