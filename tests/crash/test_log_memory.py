"""Writing and reading any amount takes a bounded amount of memory: far less than it holds."""

import subprocess
import sys

import pytest

MEGABYTES = 400
LIMIT_MB = 300

# The peak is VmHWM, which starts anew at exec; ru_maxrss starts at the parent's peak, and the parent
# is a pytest process that has run other tests.
PEAK_MB = """
def peak_mb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) // 1024 for line in status if line.startswith("VmHWM:"))
"""

WRITE = """
import sys, sparklog, numpy as np, pyarrow as pa
from sparklog.client import AppendOptions
root, codec, partitions, megabytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
log = sparklog.open(root)
log.create_topic("t", partitions)
rows, size = 10_000, 1_000
pool = np.random.default_rng(1).integers(32, 127, rows * size, dtype=np.uint8)
if codec != "none":
    pool[:] = 65
offsets = np.arange(0, (rows + 1) * size, size, dtype=np.int32)
value = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(pool)])
with log.appender(AppendOptions(compression=codec)) as appender:
    for number in range(megabytes // 10):
        key = pa.array(np.arange(rows) + number * rows).cast(pa.string())
        appender.add(pa.record_batch({"key": key, "value": value}), "t")
    staged = appender.finish()
log.publish([staged])
print(staged.record_count, peak_mb())
"""

READ = """
import sys, sparklog
log = sparklog.open(sys.argv[1], create=False)
count = 0
for partition in range(log.partition_count("t")):
    for part in log.read_batches("t", partition):
        count += part.num_rows
print(count, peak_mb())
"""


def run(code: str, *arguments: object) -> tuple[int, int]:
    """(records, peak resident megabytes) of a fresh process."""
    words = [sys.executable, "-c", PEAK_MB + code, *map(str, arguments)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=True)
    records, peak_mb = map(int, done.stdout.split())
    return records, peak_mb


@pytest.mark.parametrize(("codec", "partitions"), [("none", 1), ("none", 16), ("zstd", 1)])
def test_a_partition_far_larger_than_memory(root: str, codec: str, partitions: int) -> None:
    """zstd of one letter: what is read in one step expands several hundred times."""
    written, write_mb = run(WRITE, root, codec, partitions, MEGABYTES)
    read, read_mb = run(READ, root)
    print(f"{codec}, {partitions} partitions: write {write_mb} MB, read {read_mb} MB")
    assert written == read == MEGABYTES * 1000
    assert write_mb < LIMIT_MB
    assert read_mb < LIMIT_MB
