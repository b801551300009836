"""What there is in the end, and whether that is what everybody was told.

histories   the checker of tests/history: nothing lost, doubled, reordered, reused; no torn read
producers   each producer's records are all there, once, in the order in which it sent them
groups      the members of a group saw everything, and nothing else
commits     in the topic of committed offsets no offset of a group is below the one before it
"""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from sparklog.client import SparkLog
from sparklog.format import consumer_offsets
from tests.brokers.working import PARTITIONS, TOPIC, Worker, group_of, key_of
from tests.compat.embedded import stored_records
from tests.history.checker import check
from tests.history.events import Event, read_history
from tests.history.recorder import HistoryWriter
from tests.history.verdict import Verdict

Found = dict[tuple[int, int], str]  # partition, offset -> value


def read_everything(log: SparkLog, path: Path) -> Found:
    """By a reader that has seen nothing before; what it reads goes into the history as well."""
    found: Found = {}
    with HistoryWriter(path, "last") as history:
        log.refresh(force=True)
        for partition in range(PARTITIONS):
            polling = history.poll(final=True)
            records = stored_records(log, TOPIC, partition)
            values = [(one.value or b"").decode() for one in records]
            polling.ok({key_of(partition): (values, [one.offset for one in records])})
            found |= {(partition, one.offset): text for one, text in zip(records, values, strict=True)}
    return found


def judge(log: SparkLog, workers: list[Worker], directory: Path) -> tuple[Verdict, list[Event]]:
    """When all workers have ended. Returns what there is to report."""
    path = directory / "last.jsonl"
    found = read_everything(log, path)
    events = read_history([*(one.history for one in workers), path])
    check_producers(found, events, [one.name for one in workers if one.script == "producing"])
    groups = {group_of(one.name) for one in workers if one.script == "consuming"}
    for group in groups:
        check_group(found, events, group)
    commits = check_commits(log)
    assert groups <= commits, f"{groups - commits} committed nothing"
    verdict = check(events)
    assert not verdict.counts, str(verdict)
    return verdict, events


def check_producers(found: Found, events: list[Event], names: list[str]) -> None:
    """They have ended well, so that all that they sent was acknowledged."""
    there: dict[tuple[str, int], list[int]] = defaultdict(list)
    for (partition, _), value in sorted(found.items()):
        _, name, *place = value.split("/")
        if name in names:
            named_partition, sequence = map(int, place)
            assert named_partition == partition, value
            there[name, partition].append(sequence)
    for (name, partition), sequences in there.items():
        expected = list(range(len(sequences)))
        assert sequences == expected, f"{name}, partition {partition}: {_first_difference(sequences)}"
    told: dict[str, int] = defaultdict(int)
    for one in events:
        if one.f == "send" and one.type == "ok":
            told[one.proc] += len(one.value)
    for name in names:
        count = sum(len(sequences) for (of, _), sequences in there.items() if of == name)
        assert count == told[name] > 0, f"{name}: {count} records are there, {told[name]} were acknowledged"


def _first_difference(sequences: list[int]) -> str:
    at = next(n for n, one in enumerate(sequences) if one != n)
    return f"at place {at} of {len(sequences)}: {sequences[max(0, at - 3) : at + 4]}"


def check_group(found: Found, events: list[Event], group: str) -> None:
    """Everything, each where it is."""
    seen: Found = {}
    for one in events:
        if one.f == "poll" and one.type == "ok" and group_of(one.proc) == group:
            assert isinstance(one.offset, list)
            partition = int((one.key or "").rpartition("-")[2])
            seen |= {(partition, at): text for at, text in zip(one.offset, one.value, strict=True)}
    missing, strange = found.keys() - seen.keys(), seen.items() - found.items()
    assert not missing, f"{group} did not see {len(missing)} records, as {sorted(missing)[:5]}"
    assert not strange, f"{group} saw {sorted(strange)[:5]}"


class CommittedOffsets:
    """What groups have committed, whenever somebody looks: compaction may remove what tells of it later."""

    def __init__(self, log: SparkLog) -> None:
        self._log = log
        self._newest: dict[str, dict[tuple[str, int], int]] = {}

    def look(self, groups: Iterable[str]) -> None:
        """None is below what it was."""
        for group in groups:
            found, before = self._log.committed_offsets(group), self._newest.get(group, {})
            back = {place: (offset, found.get(place)) for place, offset in before.items()
                    if found.get(place, -1) < offset}  # fmt: skip
            assert not back, f"{group}: offsets and what they are now: {back}"
            self._newest[group] = found


def check_commits(log: SparkLog) -> set[str]:
    """Of all groups, in the order in which they are in the log; the groups that there are.

    Compaction may have removed some, but never the last one of a group.
    """
    newest: dict[consumer_offsets.OffsetKey, tuple[int, str]] = {}
    topic = consumer_offsets.TOPIC
    for partition in range(log.partition_count(topic)):
        rows = [row for batch in log.read_batches(topic, partition) for row in batch.to_pylist()]
        for row in rows:
            if row["key"] is None or row["value"] is None:
                continue
            key = consumer_offsets.decode_key(row["key"])
            if not isinstance(key, consumer_offsets.OffsetKey):
                continue
            offset = consumer_offsets.decode_offset_value(row["value"]).offset
            where = f"{topic}-{partition}@{row['offset']}"
            before, earlier = newest.get(key, (0, ""))
            assert offset >= before, f"{key}: {offset} at {where} after {before} at {earlier}"
            newest[key] = offset, where
    return {key.group for key in newest}
