"""What it costs to start a command: CPU time, user and system, the least of several runs.

The least, since other processes of the machine only add to it. Bare Python, NumPy and pyarrow are what no
command that opens a root can go below.

    python -m benchmarks.bench_startup [--runs 10]
"""

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import sparklog

SCRIPTS = Path(sys.executable).parent
LIMITS_MS = {"sparklog --help": 80, "sparklog-server --version": 100, "sparklog topics list": 250}
COMMANDS = (
    "python -c pass",
    "python -c import\tnumpy",
    "python -c import\tpyarrow",
    "sparklog --help",
    "sparklog-server --version",
    "sparklog topics list",
    "sparklog topics describe t --all",
    "sparklog groups list",
    "sparklog brokers list",
    "sparklog partitions list",
    "sparklog transactions list",
    "sparklog metadata log",
    "sparklog consume t -c 1",
)


def cpu_ms(words: list[str], runs: int) -> float:
    """The least CPU time of so many runs of a command."""
    nowhere = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_WRONLY, 0) for stream in (1, 2)]
    times = []
    for _ in range(runs):
        pid = os.posix_spawn(words[0], words, os.environ, file_actions=nowhere)
        _, status, used = os.wait4(pid, 0)
        if status:
            raise SystemExit(f"{words}: ended with {os.waitstatus_to_exitcode(status)}")
        times.append(used.ru_utime + used.ru_stime)
    return 1000 * min(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SPARKLOG_ROOT"] = f"{folder}/log"
        with sparklog.open(f"{folder}/log") as log:
            log.append("t", pa.table({"value": ["x"]}))
            log.commit_offsets("g", {("t", 0): 1})
        for command in COMMANDS:
            program, *words = command.split(" ")
            words = [word.replace("\t", " ") for word in words]
            found = cpu_ms([str(SCRIPTS / program), *words], options.runs)
            row = {
                "command": command.replace("\t", " "),
                "CPU ms": round(found),
                "aim": LIMITS_MS.get(command),
            }
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
