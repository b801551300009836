"""Who needs no broker: an embedded writer or reader (a worker: working.py), as tests/history has them."""

import itertools
import random
import sys
import threading

import sparklog
from tests.brokers.working import Ending, Pace
from tests.history import worker
from tests.history.recorder import HistoryWriter

PER_SECOND = {"writer": 5, "reader": 20}
# Where each commit is a race with three brokers, and each look a request.
PER_SECOND_ON_OBJECTS = {"writer": 2, "reader": 4}


def main(role: str, root: str, name: str, path: str) -> None:
    """Append or read until SIGTERM."""
    per_second = PER_SECOND_ON_OBJECTS if root.startswith("s3:") else PER_SECOND
    ending, pace, pause = Ending(), Pace(per_second[role]), threading.Event()
    positions: dict[int, int] = {}
    dice = random.Random(name)
    with sparklog.open(root, create=False) as log, HistoryWriter(path, name) as history:
        for number in itertools.count():
            while left := pace.left_seconds():
                pause.wait(left)
            if ending.now:
                return
            if role == "writer":
                worker.write(log, history, name, "0", dice, number)
            else:
                worker.read(log, history, name, positions, number % worker.PARTITIONS)


if __name__ == "__main__":
    main(*sys.argv[1:])
