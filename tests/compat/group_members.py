"""Members of consumer groups, each in its own thread or process, that tests start, watch, end and kill.

    with members.start(client, bootstrap, group, topic, assignor) as member:
        until(lambda: len(member.assigned()) == 3)

Run as a script it is a member that says so on stdout, to be killed:
    python tests/compat/group_members.py CLIENT BOOTSTRAP GROUP TOPIC ASSIGNOR
"""

import asyncio
import contextlib
import gc
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Long, so that nobody is taken for dead on a busy machine; short for those whose death a test waits for.
SESSION_MS, SHORT_SESSION_MS = 30_000, 1_500
COOPERATIVE = "cooperative-sticky"
SERVER_SIDE = "uniform"  # of the consumer protocol (KIP-848), in librdkafka only
ASSIGNORS = {
    "kafka-python": ("range", "roundrobin", "sticky", COOPERATIVE),
    "confluent": ("range", "roundrobin", COOPERATIVE),
    "aiokafka": ("range", "roundrobin", "sticky"),
}


class Member:
    """What every client's member has: a thread that polls, what it was assigned, what it has seen."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topic: str,
        assignor: str,
        *,
        instance_id: str | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        self.bootstrap, self.group, self.topic = bootstrap, group, topic
        self.assignor, self.instance_id, self.session_ms = assignor, instance_id, session_ms
        self._seen: list[tuple[int, int]] = []
        self.revocations = 0
        self._assigned: frozenset[int] = frozenset()
        self._ending = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def assigned(self) -> frozenset[int]:
        """The partitions that it has now."""
        if self._error is not None:
            raise self._error
        return self._assigned

    @property
    def seen(self) -> list[tuple[int, int]]:
        """(partition, offset) of everything it has read."""
        if self._error is not None:
            raise self._error
        return self._seen

    def end(self) -> None:
        """Commit, leave the group, and wait until that is done."""
        self._ending.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _main(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    def _run(self) -> None:
        raise NotImplementedError

    def _note(self, partitions: Any) -> None:
        now = frozenset(partitions)
        if self._assigned - now:
            self.revocations += 1
        self._assigned = now


class PythonMember(Member):
    """What the two clients in Python call by the same names."""

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap,
            "group_id": self.group,
            "session_timeout_ms": self.session_ms,
            "heartbeat_interval_ms": 150,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "retry_backoff_ms": 50,
            "fetch_max_wait_ms": 100,
        }
        if self.instance_id is not None:
            settings["group_instance_id"] = self.instance_id
        return settings


class KafkaPythonMember(PythonMember):
    """kafka-python 3."""

    def _run(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import kafka
            from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
            from kafka.coordinator.assignors.range import RangePartitionAssignor
            from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
            from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

            from tests.compat.clients.kafka_python import subscribe

            assignors = {
                "range": RangePartitionAssignor,
                "roundrobin": RoundRobinPartitionAssignor,
                "sticky": StickyPartitionAssignor,
                COOPERATIVE: CooperativeStickyAssignor,
            }
            consumer = kafka.KafkaConsumer(
                partition_assignment_strategy=[assignors[self.assignor]], **self._settings()
            )
            try:
                subscribe(consumer, self.topic)
                while not self._ending.is_set():
                    try:
                        records = consumer.poll(timeout_ms=100)
                    except kafka.errors.KafkaConnectionError:  # told, not hidden, while there is no broker
                        self._ending.wait(0.1)
                        continue
                    self._note(tp.partition for tp in consumer.assignment())
                    if records:
                        self._seen += [
                            (one.partition, one.offset) for part in records.values() for one in part
                        ]
                        with contextlib.suppress(kafka.errors.KafkaError):  # a rebalance, or no broker
                            consumer.commit()
            finally:
                consumer.close(autocommit=False)


class ConfluentMember(Member):
    """librdkafka."""

    def _run(self) -> None:
        import confluent_kafka

        settings: dict[str, Any] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
        if self.assignor == SERVER_SIDE:
            settings |= {"group.protocol": "consumer", "group.remote.assignor": self.assignor}
        else:
            settings |= {
                "partition.assignment.strategy": self.assignor,
                "session.timeout.ms": self.session_ms,
                "heartbeat.interval.ms": 150,
            }
        if self.instance_id is not None:
            settings["group.instance.id"] = self.instance_id
        consumer = confluent_kafka.Consumer(settings)
        consumer.subscribe([self.topic])
        try:
            while not self._ending.is_set():
                message = consumer.poll(0.05)
                self._note(tp.partition for tp in consumer.assignment())
                if message is not None and message.error() is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None
                    assert offset is not None
                    self._seen.append((partition, offset))
                    with contextlib.suppress(confluent_kafka.KafkaException):
                        consumer.commit(message=message, asynchronous=False)
        finally:
            consumer.close()


class AioMember(PythonMember):
    """aiokafka."""

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
        from aiokafka.errors import KafkaError

        assignors = {
            "range": RangePartitionAssignor,
            "roundrobin": RoundRobinPartitionAssignor,
            "sticky": StickyPartitionAssignor,
        }
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            partition_assignment_strategy=[assignors[self.assignor]],
            # Told NOT_LEADER while it looks for where to begin, it does not look for another leader.
            metadata_max_age_ms=1_000,
            **self._settings(),
        )
        await consumer.start()
        try:
            while not self._ending.is_set():
                records = await consumer.getmany(timeout_ms=50)
                self._note(tp.partition for tp in consumer.assignment())
                if records:
                    self._seen += [(one.partition, one.offset) for part in records.values() for one in part]
                    with contextlib.suppress(KafkaError):
                        await consumer.commit()
        finally:
            await consumer.stop()


MEMBERS: dict[str, Callable[..., Member]] = {
    "kafka-python": KafkaPythonMember,
    "confluent": ConfluentMember,
    "aiokafka": AioMember,
}


@contextlib.contextmanager
def joined(
    client: str, bootstrap: str, group: str, topic: str, assignor: str, **more: Any
) -> Iterator[Member]:
    """A member; it leaves at the end, if it has not before."""
    member = MEMBERS[client](bootstrap, group, topic, assignor, **more)
    try:
        yield member
    finally:
        member._ending.set()
        member._thread.join(30)
        gc.collect()  # clients leave sockets behind; here the test's filters still apply


class KillableMember:
    """A member as a process."""

    def __init__(self, client: str, bootstrap: str, group: str, topic: str, assignor: str) -> None:
        words = [
            sys.executable,
            "-m",
            "tests.compat.group_members",
            client,
            bootstrap,
            group,
            topic,
            assignor,
        ]
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=root)

    def wait_until_assigned(self) -> frozenset[int]:
        """Its first partitions."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the member ended"
        return frozenset(int(word) for word in line.split())

    def kill(self) -> None:
        """SIGKILL: it does not leave the group."""
        self.process.kill()
        self.process.communicate()


def main() -> None:
    """A member until it is killed."""
    client, bootstrap, group, topic, assignor = sys.argv[1:]
    told: frozenset[int] = frozenset()
    with joined(client, bootstrap, group, topic, assignor, session_ms=SHORT_SESSION_MS) as member:
        while True:
            assigned = member.assigned()
            if assigned and assigned != told:
                told = assigned
                print(*sorted(assigned), flush=True)
            threading.Event().wait(0.02)


if __name__ == "__main__":
    main()
