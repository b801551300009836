"""Eight processes append to one root at once. SPARKLOG_SOAK_SECONDS makes it longer."""

import os
import subprocess
import sys
import threading

import pyarrow as pa

import sparklog

PROCESSES = 8
SECONDS = float(os.environ.get("SPARKLOG_SOAK_SECONDS", "3"))

CHILD = """
import sys, sparklog, pyarrow as pa
from sparklog.clock import SystemClock
root, name, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
log, clock = sparklog.open(root, create=False), SystemClock()
sys.stdin.readline()
end_ms = clock.monotonic_ms() + seconds * 1000
number = 0
while clock.monotonic_ms() < end_ms:
    table = pa.table({"key": [f"{name}/{number}/{row}" for row in range(5)], "value": [name] * 5})
    result = log.append("shared", table)
    for partition, appended in result.partitions.items():
        print(name, number, partition, appended.base_offset, appended.record_count)
    if number % 5 == 0:
        log.append(f"own-{name}", table)
        log.commit_offsets(name, {("shared", 0): number})
    number += 1
print("end", name, number, flush=True)
"""


def test_racing_processes_lose_nothing_and_share_no_offset(root: str) -> None:
    log = sparklog.open(root)
    log.create_topic("shared", 4)
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, root, f"p{number}", str(SECONDS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(PROCESSES)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    outputs = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * PROCESSES
    acknowledged: dict[tuple[int, int], str] = {}
    counts: dict[str, int] = {}
    for line in "".join(outputs).splitlines():
        words = line.split()
        if words[0] == "end":
            counts[words[1]] = int(words[2])
            continue
        name, number, partition, base_offset, record_count = words[0], *map(int, words[1:])
        for offset in range(base_offset, base_offset + record_count):
            assert (partition, offset) not in acknowledged
            acknowledged[partition, offset] = f"{name}/{number}/"
    found: dict[tuple[int, int], str] = {}
    for partition in range(4):
        table = pa.Table.from_batches(list(log.read_batches("shared", partition)))
        for offset, key in zip(table["offset"].to_pylist(), table["key"].to_pylist(), strict=True):
            found[partition, offset] = key.decode()
    assert found.keys() == acknowledged.keys()
    assert all(found[where].startswith(prefix) for where, prefix in acknowledged.items())
    expected = {
        f"{name}/{number}/{row}"
        for name, count in counts.items()
        for number in range(count)
        for row in range(5)
    }
    assert set(found.values()) == expected
    assert len(found) == len(expected)
    assert min(counts.values()) > 0
    for name, count in counts.items():
        written = -(-count // 5)
        assert log.log_end_offset(f"own-{name}", 0) == 5 * written
        assert log.committed_offsets(name) == {("shared", 0): 5 * (written - 1)}


def test_threads_that_share_a_log_lose_and_repeat_nothing(root: str) -> None:
    log = sparklog.open(root)
    log.create_topic("t", 2)

    def work(name: int) -> None:
        for number in range(10):
            log.append("t", pa.table({"key": [f"{name}/{number}/{row}" for row in range(20)]}))
            log.commit_offsets(f"g{name}", {("t", 0): number})

    threads = [threading.Thread(target=work, args=(name,)) for name in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = [
        key.decode()
        for partition in range(2)
        for part in log.read_batches("t", partition)
        for key in part["key"].to_pylist()
    ]
    assert sorted(keys) == sorted(f"{a}/{b}/{c}" for a in range(6) for b in range(10) for c in range(20))
    assert [log.committed_offsets(f"g{name}") for name in range(6)] == [{("t", 0): 9}] * 6
    assert (
        len({extent.segment for state in log.image.topics["t"].partitions for extent in state.extents}) == 1
    )
