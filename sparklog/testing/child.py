"""`python -m sparklog.testing.child ...`: `sparklog-server`, which ends when its parent process has ended.

Its standard input is a pipe that the parent holds open: a test run that is killed leaves no broker behind.
"""

import os
import runpy
import signal
import threading


def end_with_parent() -> None:
    """Stop this process, gracefully, at the end of its standard input."""
    os.read(0, 1)  # not sys.stdin: the interpreter could not end while this thread has its lock
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=end_with_parent, name="parent", daemon=True).start()
    runpy.run_module("sparklog_server", run_name="__main__", alter_sys=True)
