"""`python -m sparklog_server`, which says where it stands when SIGUSR2 comes: its threads, and its tasks.

A broker that does not stop is a fault that may not come again for a hundred runs.
"""

import asyncio
import faulthandler
import signal
import sys
from types import CodeType, FrameType

from sparklog_server.main import main


def say_where(_number: int, _frame: FrameType | None) -> None:
    """On stderr. In the main thread, between two instructions: not if that one hangs in C."""
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    for task in asyncio.all_tasks(asyncio.get_event_loop()):
        names: list[str] = []
        awaited: object = task.get_coro()
        while awaited is not None:
            code = getattr(awaited, "cr_code", None)
            frame = getattr(awaited, "cr_frame", None)
            if isinstance(code, CodeType) and isinstance(frame, FrameType):
                names.append(f"{code.co_qualname}:{frame.f_lineno}")
            awaited = getattr(awaited, "cr_await", None)
        print(f"task {task.get_name()}: {' > '.join(names)}", file=sys.stderr)
    sys.stderr.flush()


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, say_where)
    main()
