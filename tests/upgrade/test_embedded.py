"""Writers, readers and maintenance of two versions on one root, without a broker."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.upgrade.programs import Programs

WRITER = """
import sys, pyarrow as pa, sparklog
root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with sparklog.open(root) as log:
    for n in range(count):
        log.append("shared", pa.table({"key": [name.encode()], "value": [str(n).encode()]}))
"""
TRANSACTION = """
import sys, pyarrow as pa, sparklog
with sparklog.open(sys.argv[1]) as log, log.transaction("job") as txn:
    txn.append("t", pa.table({"key": [b"k"], "value": [sys.argv[2].encode()]}))
"""
FUTURE = """
import sys, sparklog
from sparklog.metadata import RequireFeatures
from sparklog.metadata.model import settings
settings.READER_FEATURES = frozenset({"from-the-future"})
with sparklog.open(sys.argv[1]) as log:
    log.metadata.publish(lambda _: (RequireFeatures(readers=("from-the-future",)),))
"""


def lines(first: int, count: int) -> list[str]:
    return [f"k{n % 7}:v{n}" for n in range(first, first + count)]


def values(records: list[str]) -> list[str]:
    return sorted(record.split(" ", 2)[2] for record in records)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_each_reads_and_goes_on_with_what_the_other_wrote(
    before_and_after: tuple[Programs, Programs], codec: str, root: Path
) -> None:
    before, after = before_and_after
    create = (
        "topics",
        "create",
        "--topic",
        "t",
        "--partitions",
        "3",
        "--config",
        f"compression.type={codec}",
    )
    before.sparklog(root, *create)
    before.produce(root, "t", lines(0, 200))
    first = before.records(root, "t")
    assert values(first) == sorted(lines(0, 200))
    assert after.records(root, "t") == first
    after.produce(root, "t", lines(200, 200))
    both = after.records(root, "t")
    assert values(both) == sorted(lines(0, 400))
    assert set(first) <= set(both)
    assert before.records(root, "t") == both


def test_each_reads_what_the_others_maintenance_left(
    before_and_after: tuple[Programs, Programs], root: Path
) -> None:
    before, after = before_and_after
    settings = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=0.01")
    before.sparklog(root, "topics", "create", "--topic", "merged", "--partitions", "2")
    before.sparklog(root, "topics", "create", "--topic", "kept", "--partitions", "2", *settings)
    for first in range(0, 60, 20):
        before.produce(root, "merged", lines(first, 20))
        before.produce(root, "kept", lines(first, 20))
    first_records = before.records(root, "merged")
    newest = {key: value for key, _, value in (line.partition(":") for line in lines(0, 60))}
    for programs in (after, before):
        programs.sparklog(root, "optimize")
        programs.sparklog(root, "compact", "kept")
        programs.sparklog(root, "vacuum", "--retain", "0s", "--force")
        for reader in (before, after):
            assert reader.records(root, "merged") == first_records
            found = [record.rsplit(" ", 1)[1].partition(":") for record in reader.records(root, "kept")]
            assert {key: value for key, _, value in found} == newest
        programs.produce(root, "kept", [f"{key}:{value}" for key, value in newest.items()])


def test_transactions_of_both_are_read_by_both(
    before_and_after: tuple[Programs, Programs], root: Path
) -> None:
    for number, programs in enumerate((*before_and_after, *before_and_after)):
        programs.run_code(TRANSACTION, str(root), str(number))
    for programs in before_and_after:
        assert values(programs.records(root, "t")) == [f"k:{number}" for number in range(4)]


def test_writers_of_both_write_at_the_same_time(older: Programs, newer: Programs, root: Path) -> None:
    older.sparklog(root, "topics", "create", "--topic", "shared")
    writers = [
        subprocess.Popen(
            [programs.python, "-P", "-c", WRITER, str(root), f"{programs.name}{number}", "40"],
            env=programs.environment(),
        )
        for programs in (older, newer)
        for number in range(2)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0, 0]
    found = older.records(root, "shared")
    assert found == newer.records(root, "shared")
    assert sorted(int(record.split(" ")[1]) for record in found) == list(range(160))
    assert len(set(values(found))) == 160


def test_a_feature_that_the_older_one_lacks_is_refused_by_name(
    older: Programs, newer: Programs, root: Path
) -> None:
    older.produce(root, "t", lines(0, 10))
    newer.run_code(FUTURE, str(root))
    for words in (("consume", "--topic", "t", "-e"), ("topics", "list")):
        refused = older.attempt(root, *words)
        assert refused.returncode == 1
        assert "SPARKLOG_UNSUPPORTED_METADATA" in refused.stderr
        assert "from-the-future" in refused.stderr


def test_this_is_really_the_older_one(older: Programs) -> None:
    where = older.run_code("import sparklog; print(sparklog.__file__)").strip()
    assert Path(where).is_relative_to(Path(older.python).parents[1])
    assert older.python != sys.executable
