"""The crash matrix's compacted topics: what a writer puts there beside each operation, and what is left.

Each record follows from its offset: its key, its value, and whether it is a tombstone. One writer appends to
a table, exactly once: so whatever happens, the record at an offset is known. Tombstones need not be kept
(delete.retention.ms is 0).
"""

import pyarrow as pa

from sparklog.client import SparkLog

TABLES = ("embedded", "broker")  # whose operations go to a table as well
ROWS = 3  # of each operation
CONFIGS = {"cleanup.policy": "compact", "delete.retention.ms": "0", "segment.bytes": "2000"}
_KEYS = 7
_STEP = 3  # so that a key comes back after some other ones


def table_of(role: str) -> str:
    """The name of its topic, of one partition."""
    return f"table-{role}"


def record_at(role: str, offset: int) -> tuple[bytes, bytes | None]:
    """Key and value."""
    key = b"k%d" % (offset * _STEP % _KEYS)
    is_tombstone = offset * _STEP // _KEYS % 4 == 3
    return key, None if is_tombstone else f"{role}/{offset}/".encode() + b"." * (offset % 50)


def records_of(role: str, number: int) -> list[tuple[bytes, bytes | None]]:
    """Of an operation."""
    return [record_at(role, offset) for offset in range(number * ROWS, (number + 1) * ROWS)]


def table_rows(role: str, number: int) -> pa.Table:
    """The same, to be appended."""
    keys, values = zip(*records_of(role, number), strict=True)
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})


def table_problems(log: SparkLog, role: str, acked: int, most: int) -> list[str]:
    """What is wrong with a table after so many acknowledged operations; `most` of them may be there."""
    topic = table_of(role)
    state = log.refresh().partition(topic, 0)
    end, problems = state.log_end_offset, list[str]()
    found: dict[int, tuple[bytes, bytes | None]] = {}
    for one in log.read_batches(topic, 0):
        records = zip(one["key"].to_pylist(), one["value"].to_pylist(), strict=True)
        found.update(zip(one["offset"].to_pylist(), records, strict=True))
    if not acked * ROWS <= end <= most * ROWS or end % ROWS:
        problems.append(f"{topic}: ends at {end} after {acked} acknowledged operations")
    problems += [
        f"{topic}@{offset}: {record}, expected {record_at(role, offset)}"
        for offset, record in found.items()
        if record != record_at(role, offset)
    ]
    last: dict[bytes, int] = {}
    compacted: set[bytes] = set()
    for offset in range(end):
        key, _ = record_at(role, offset)
        last[key] = offset
        if offset in found and offset < state.cleaned.first_dirty_offset:
            if key in compacted:
                problems.append(f"{topic}@{offset}: {key!r} is there twice, and was compacted")
            compacted.add(key)
    for key, offset in last.items():
        is_tombstone = record_at(role, offset)[1] is None
        if offset not in found and not is_tombstone:
            problems.append(f"{topic}@{offset}: lost: the last record of {key!r}")
        if offset not in found and any(found[one][0] == key for one in found):
            problems.append(f"{topic}: revived: {key!r}, which {offset} has deleted")
    if len(state.extents) and state.extents[-1].end_offset != end:
        problems.append(f"{topic}: ends at {end}, its last extent at {state.extents[-1].end_offset}")
    return problems
