"""Kafka Streams with `exactly_once_v2`, over three brokers, all of which are killed again and again."""

import random
from collections import defaultdict
from pathlib import Path

import pyarrow as pa

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java
from benchmarks.peers.kafka_tools import HEAP
from sparklog.client import SparkLog
from tests.brokers.cluster import Brokers, brokers
from tests.brokers.working import PARTITIONS, TOPIC
from tests.compat.embedded import stored_records
from tests.peers.killed import Killed
from tests.support.broker_process import until

PROGRAM = Path(__file__).with_name("Counting.java")
LIVES = 11  # all but the last one are killed
LINES, WORDS_OF_A_LINE = 300, 4  # appended for each life
VOCABULARY = [f"word-{number}" for number in range(40)]
COUNTS = "counts"
PATIENCE_SECONDS = 180


def append_lines(log: SparkLog, choice: random.Random, said: dict[str, int]) -> None:
    """Lines of words, which `said` counts."""
    lines = []
    for _ in range(LINES):
        words = choice.choices(VOCABULARY, k=WORDS_OF_A_LINE)
        for word in words:
            said[word] += 1
        lines.append(" ".join(words).encode())
    partitions = pa.array([choice.randrange(PARTITIONS) for _ in lines], pa.int32())
    log.append(TOPIC, pa.table({"value": pa.array(lines, pa.binary()), "partition": partitions}))


def counted(log: SparkLog) -> int:
    log.refresh(force=True)
    return sum(log.log_end_offset(COUNTS, partition) for partition in range(PARTITIONS))


def check_counts(log: SparkLog, said: dict[str, int]) -> None:
    """Each word was counted up by one, as often as it was said, and by nobody else."""
    found: dict[str, list[int]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for one in stored_records(log, COUNTS, partition):
            assert one.key is not None
            assert one.value is not None
            found[one.key.decode()].append(int(one.value))
    assert {word: len(counts) for word, counts in found.items()} == said
    for word, counts in found.items():
        assert counts == list(range(1, said[word] + 1)), word


def fell_a_broker(all_of_them: Brokers, choice: random.Random) -> None:
    """SIGKILL for one, which is started again once the others do its work."""
    node = choice.choice(sorted(all_of_them.processes))
    all_of_them.processes[node].kill()
    until(lambda: node not in all_of_them.live(), PATIENCE_SECONDS, f"broker {node} is fenced")
    all_of_them.processes[node].start()


def test_words_are_counted_exactly_whoever_is_killed(kafka_application_jars: Jars, tmp_path: Path) -> None:
    choice = random.Random(20)
    said: dict[str, int] = defaultdict(int)
    with brokers(str(tmp_path / "log"), tmp_path) as all_of_them:
        log = all_of_them.log
        log.create_topic(COUNTS, PARTITIONS)
        words = [all_of_them.bootstrap, "counting", str(tmp_path / "state"), TOPIC, COUNTS]
        command = java(kafka_application_jars, str(PROGRAM), *words, heap=HEAP, jvm=QUICK_START)
        left_open = 0
        for life in range(LIVES):
            before = sum(said.values())
            append_lines(log, choice, said)
            is_last = life == LIVES - 1
            # Somewhere in the midst of what there is to do.
            goal = sum(said.values()) if is_last else choice.randrange(before + 1, sum(said.values()))
            with Killed(command, tmp_path / f"streams-{life}.out") as streams:
                if life % 3 == 1:
                    until(lambda: counted(log) > before, PATIENCE_SECONDS, "it counts")  # noqa: B023
                    fell_a_broker(all_of_them, choice)
                streams.until(lambda: counted(log) >= goal, PATIENCE_SECONDS)  # noqa: B023
            left_open += any(one.is_ongoing for one in all_of_them.image().transactions.values())
        assert left_open, "no kill was in the midst of a transaction"
        all_of_them.check()
        log.refresh(force=True)
        check_counts(log, said)
