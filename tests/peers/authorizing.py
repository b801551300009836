"""Kafka's own authorizer, asked about sets of ACLs (tests/client/acl_cases.py)."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers import fetching
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP

PROGRAM = Path(__file__).with_name("Authorizing.java")
SECONDS = 300


def kafka_answers(sets: Sequence[Sequence[str]]) -> list[str]:
    """Return Kafka's answers to the requests of each set: a digit for each."""
    lines = [line for one in sets for line in one]
    done = subprocess.run(
        java(fetching.kafka(), str(PROGRAM), heap=HEAP, jvm=QUICK_START),
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{PROGRAM.name}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    digits = iter(done.stdout.strip().splitlines()[-1])
    counts = (sum(line.startswith(("ASK\t", "ANY\t")) for line in one) for one in sets)
    return ["".join(next(digits) for _ in range(count)) for count in counts]
