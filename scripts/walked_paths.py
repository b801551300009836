"""How much code a request walks through: files, functions and calls, of five ways through sparklog.

    python scripts/walked_paths.py [--files produce]

Each way is warmed up and then run once with a profile hook in every thread; what the broker's own look at the
metadata log adds (some twenty calls) is part of the figures. Only functions of sparklog and sparklog_server
count. `--files WAY` lists the files of one way, with the calls into each.
"""

import argparse
import collections
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # a command's own folder is there, not the project

import pyarrow as pa  # noqa: E402 - found by the line above

import sparklog  # noqa: E402
from tests.server.api import fetching, group_requests  # noqa: E402
from tests.server.publish.asking import ProducingClient  # noqa: E402
from tests.server.publish.batches import batch  # noqa: E402
from tests.support.running_broker import RunningBroker  # noqa: E402

PACKAGES = tuple(str(ROOT / package) for package in ("sparklog", "sparklog_server"))
WARM_UP = 20


class Walk:
    """What is counted while it is on."""

    def __init__(self) -> None:
        self.functions: collections.Counter[tuple[str, str, int]] = collections.Counter()
        self.is_on = False

    def hook(self, frame: FrameType, event: str, _argument: object) -> None:
        """For setprofile. Python 3.11 sets it only in threads that start later."""
        if self.is_on and event == "call":
            code = frame.f_code
            if code.co_filename.startswith(PACKAGES):
                self.functions[code.co_filename, code.co_qualname, code.co_firstlineno] += 1

    def of(self, run: Callable[[], object]) -> None:
        """Count one run of a way, once it is warm."""
        for _ in range(WARM_UP):
            run()
        self.functions.clear()
        self.is_on = True
        sys.setprofile(self.hook)
        run()
        sys.setprofile(None)
        self.is_on = False

    @property
    def files(self) -> collections.Counter[str]:
        """Calls into each."""
        found: collections.Counter[str] = collections.Counter()
        for (path, _, _), calls in self.functions.items():
            found[str(Path(path).relative_to(ROOT))] += calls
        return found


def ways(root: str, broker: RunningBroker) -> dict[str, Callable[[], object]]:
    """Each can be run any number of times."""
    log = broker.beside()
    log.create_topic("t", 1)
    broker.settle()
    client = ProducingClient(broker.host, broker.port)
    value = [b"x"]
    embedded = sparklog.open(root, create=False)
    table = pa.table({"value": pa.array(value, pa.binary())})
    return {
        "append and publish": lambda: embedded.append("t", table),
        "produce": lambda: client.produce(("t", 0, batch(value))),
        "fetch": lambda: fetching.fetch(client, fetching.asked((0, 0), topic="t")),
        "offset commit": lambda: group_requests.commit(client, {("t", 0): 1}),
        "offset fetch": lambda: group_requests.fetch(client, {"t": [0]}),
    }


def main() -> None:
    """Print the table, or the files of one way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", metavar="WAY", default="")
    options = parser.parse_args()
    walk = Walk()
    threading.setprofile(walk.hook)
    with tempfile.TemporaryDirectory() as directory:
        broker = RunningBroker(f"{directory}/root", {"node.id": "1"})
        try:
            print(f"{'way':20} {'files':>6} {'functions':>10} {'calls':>6}")
            for name, run in ways(broker.root, broker).items():
                walk.of(run)
                print(f"{name:20} {len(walk.files):6} {len(walk.functions):10} {walk.functions.total():6}")
                if name == options.files:
                    for path, calls in sorted(walk.files.items()):
                        print(f"    {path:60} {calls:5}")
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
