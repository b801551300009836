"""A process whose history is recorded until it is killed, or the file STOP appears; run by test_processes.py.

worker.py writer|reader ROOT NAME LIFE DIRECTORY
"""

import itertools
import random
import sys
from pathlib import Path

import pyarrow as pa

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import FatalStorageError, RetriableError, StorageError
from tests.history.recorder import History, HistoryWriter, Operation

TOPIC, PARTITIONS = "t", 3


def key_of(partition: int) -> str:
    return f"{TOPIC}-{partition}"


def rows_of(values: dict[str, list[str]]) -> pa.RecordBatch:
    texts = [text for one in values.values() for text in one]
    partitions = [int(key.rpartition("-")[2]) for key, one in values.items() for _ in one]
    return pa.RecordBatch.from_pydict({"value": texts, "partition": pa.array(partitions, pa.int32())})


def end_with(operation: Operation, error: StorageError | RetriableError) -> None:
    """As `publish` documents its errors."""
    if isinstance(error, FatalStorageError) or error.code == "PUBLISH_UNRESOLVED":
        operation.info(error)
    else:
        operation.fail(error)


def write(log: SparkLog, history: History, name: str, life: str, dice: random.Random, number: int) -> None:
    """A plain append, or the query's next batch: the same batch again if a former life did not finish it."""
    txn = None
    prefix = f"{TOPIC}/{name}/{life}-{number}"
    if dice.random() < 0.5:
        known = log.refresh().topic(TOPIC).writer_txns.get(name)
        version = 0 if known is None else known.version + 1
        txn, prefix = (name, version), f"{TOPIC}/{name}/batch-{version}"
        dice = random.Random(prefix)
    values: dict[str, list[str]] = {}
    for row in range(dice.randrange(1, 8)):
        values.setdefault(key_of(dice.randrange(PARTITIONS)), []).append(f"{prefix}/{row}")
    sending = history.send(values, txn=None if txn is None else f"{txn[0]}/{txn[1]}")
    try:
        result = log.append(TOPIC, rows_of(values), txn=txn)
    except (RetriableError, StorageError) as error:
        end_with(sending, error)
        return
    if result.duplicate:
        sending.ok()
        return
    found = {key_of(partition): one for (_, partition), one in result.ranges.items()}
    sending.ok({key: (values[key], range(one.base_offset, one.end_offset)) for key, one in found.items()})


def read(log: SparkLog, history: History, name: str, positions: dict[int, int], partition: int) -> None:
    """Poll from where the group stands, then commit."""
    key = key_of(partition)
    if partition not in positions:
        fetching = history.begin("fetch-committed", group=name, key=key)
        offset = log.committed_offsets(name).get((TOPIC, partition))
        fetching.ok(offset=offset)
        positions[partition] = 0 if offset is None else offset
    polling = history.poll()
    table = log.read(TOPIC, partition, positions[partition], max_records=50)
    if not table.num_rows:
        return
    offsets = table["offset"].to_pylist()
    polling.ok({key: ([value.decode() for value in table["value"].to_pylist()], offsets)})
    positions[partition] = offsets[-1] + 1
    committing = history.commit(name, key, positions[partition])
    try:
        log.commit_offsets(name, {(TOPIC, partition): positions[partition]})
    except (RetriableError, StorageError) as error:
        end_with(committing, error)
        return
    committing.ok()


def main(role: str, root: str, name: str, life: str, directory: str) -> None:
    dice = random.Random(f"{name} {life}")
    log = sparklog.open(root, create=False)
    positions: dict[int, int] = {}
    with HistoryWriter(Path(directory) / f"{name}-{life}.jsonl", f"{name}-{life}") as history:
        for number in itertools.count():
            if (Path(directory) / "STOP").exists():
                return
            if role == "writer":
                write(log, history, name, life, dice, number)
            else:
                read(log, history, name, positions, number % PARTITIONS)


if __name__ == "__main__":
    main(*sys.argv[1:])
