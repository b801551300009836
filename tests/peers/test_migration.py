"""Fleets that change their protocol: Java's consumers one by one, and requests step by step beside Kafka."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import QUICK_START, java, kafka_broker
from benchmarks.peers.kafka_tools import CLASSES, HEAP
from sparklog_server.groups.consumer_protocol import decode_assignment, encode_assignment
from tests.peers.conftest import Tool
from tests.peers.test_heartbeats_beside_kafka import Side
from tests.peers.test_java_clients import events, held
from tests.server.groups.migrating import subscription
from tests.support.broker_process import BrokerProcess, serving, until

PARTITIONS, FLEET, RECORDS = 12, 6, 600
CLASSIC = ("--group-protocol", "classic", "--session-timeout", "10000", "--assignment-strategy")
CONSUMER = ("--group-protocol", "consumer")


# --- Java's consumers --------------------------------------------------------------------------------


class Fleet:
    """Verifiable consumers of one group, in the order of their starts; those that have ended stay known."""

    def __init__(self, jars: Jars, directory: Path, *words: str) -> None:
        self._command = java(jars, CLASSES["kafka-verifiable-consumer"], *words, heap=HEAP, jvm=QUICK_START)
        self._directory = directory
        self.members: list[tuple[subprocess.Popen[bytes], Path]] = []
        self.outputs: list[Path] = []

    def start(self, *words: str) -> None:
        output = self._directory / f"member-{len(self.outputs)}"
        self.outputs.append(output)
        with output.open("wb") as file:
            process = subprocess.Popen([*self._command, *words], stdout=file, stderr=subprocess.STDOUT)
        self.members.append((process, output))

    def end_oldest(self) -> None:
        process, output = self.members.pop(0)
        process.terminate()
        assert process.wait(60) in (0, 143), output.read_text()

    def settle(self) -> None:
        shares = [PARTITIONS // len(self.members)] * len(self.members)
        until(
            lambda: [len(held(output)) for _, output in self.members] == shares,
            120,
            f"the partitions are shared: {shares}",
            every_seconds=0.2,
        )

    def read(self) -> set[tuple[int, int]]:
        found = (one for output in self.outputs for one in events(output.read_text()))
        return {(one["partition"], one["offset"]) for one in found if one["name"] == "record_data"}  # type: ignore[misc]

    def owned_twice(self) -> list[str]:
        """Partitions that a member was given before another had given them up, by the machine's clock."""
        changes: list[tuple[int, bool, int, str]] = []
        for output in self.outputs:
            for one in events(output.read_text()):
                name = str(one["name"])
                if name in {"partitions_assigned", "partitions_revoked", "partitions_lost"}:
                    is_given = name == "partitions_assigned"
                    changes += [
                        (int(str(one["timestamp"])), is_given, part["partition"], output.name)
                        for part in one["partitions"]  # type: ignore[attr-defined]
                    ]
        owners: dict[int, str] = {}
        twice = []
        for at_ms, is_given, partition, name in sorted(changes):
            if is_given and owners.get(partition, name) != name:
                twice.append(f"{partition} at {at_ms}: {owners[partition]}, and {name}")
            if is_given:
                owners[partition] = name
            elif owners.get(partition) == name:
                del owners[partition]
        return twice

    def close(self) -> None:
        for process, _ in self.members:
            process.kill()
            process.wait()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("assignor", ["CooperativeStickyAssignor", "RangeAssignor"])
def test_a_fleet_is_rolled_to_the_consumer_protocol_and_back(
    kafka_jars: Jars,
    server: BrokerProcess,
    tool: Tool,
    new_topic: Callable[..., str],
    assignor: str,
    tmp_path: Path,
) -> None:
    topic, group = new_topic(PARTITIONS), f"fleet-{assignor}"
    words = ["--bootstrap-server", server.bootstrap, "--topic", topic, "--group-id", group, "--verbose"]
    words += ["--reset-policy", "earliest"]
    fleet = Fleet(kafka_jars, tmp_path, *words)
    classic = (*CLASSIC, f"org.apache.kafka.clients.consumer.{assignor}")
    producing = java(
        kafka_jars,
        CLASSES["kafka-verifiable-producer"],
        *("--bootstrap-server", server.bootstrap, "--topic", topic),
        *("--throughput", "20", "--max-messages", str(RECORDS)),
        heap=HEAP,
        jvm=QUICK_START,
    )
    with contextlib.closing(fleet), (tmp_path / "producer").open("wb") as file:
        for _ in range(FLEET):
            fleet.start(*classic)
        fleet.settle()
        producer = subprocess.Popen(producing, stdout=file, stderr=subprocess.STDOUT)
        try:
            for protocol, kind in ((CONSUMER, "Consumer"), (classic, "Classic")):
                for _ in range(FLEET):
                    fleet.end_oldest()
                    fleet.start(*protocol)
                    fleet.settle()
                listed = tool("kafka-groups", "--list")
                assert [line for line in listed.splitlines() if group in line and kind in line], listed
            assert producer.wait(120) == 0
        finally:
            producer.kill()
            producer.wait()
        sent = events((tmp_path / "producer").read_text())
        acknowledged = {
            (one["partition"], one["offset"]) for one in sent if one["name"] == "producer_send_success"
        }
        assert len(acknowledged) == RECORDS
        until(lambda: fleet.read() >= acknowledged, 60, "all is read", every_seconds=0.5)
        assert fleet.owned_twice() == []


# --- beside Kafka ------------------------------------------------------------------------------------

JOIN, HEARTBEAT, LEAVE, SYNC, COMMIT, LIST = 11, 12, 13, 14, 8, 16
SETTINGS = {"group.consumer.assignment.interval.ms": "0", "group.initial.rebalance.delay.ms": "0"}
POLICIES = ("bidirectional", "upgrade", "downgrade", "disabled")


class ClassicMember:
    """A member of the classic protocol, which sends what the test has it send."""

    def __init__(self, side: Side, instance_id: str | None = None, protocol: str = "range") -> None:
        self.side, self.instance_id, self.protocol = side, instance_id, protocol
        self.id, self.generation = "", -1
        self.leads = False

    def join(self, *owned: int, **fields: Any) -> str:
        said = subscription(["t"], {"t": frozenset(owned)} if owned else {})
        protocols = [{"_": "JoinGroupRequestProtocol", "name": self.protocol, "metadata": said}]
        words = {
            "group_id": self.side.group,
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "protocol_type": "consumer",
            "protocols": protocols,
            "session_timeout": 30_000,
            "rebalance_timeout": 60_000,
            **fields,
        }
        answer = self.side.ask(JOIN, 9, **words)
        error = str(answer.error_code.name)
        if error in {"none", "member_id_required"}:
            self.id = answer.member_id
        if error == "none":
            self.generation, self.leads = answer.generation_id, answer.leader == self.id
        return error

    def sync(self, *partitions: int, **fields: Any) -> tuple[str, tuple[int, ...]]:
        """The error, and the partitions; a leader assigns these to itself."""
        given = encode_assignment({"t": frozenset(partitions)}, 1)
        mine = [{"_": "SyncGroupRequestAssignment", "member_id": self.id, "assignment": given}]
        words = {
            "group_id": self.side.group,
            "member_id": self.id,
            "group_instance_id": self.instance_id,
            "generation_id": self.generation,
            "protocol_type": "consumer",
            "protocol_name": self.protocol,
            "assignments": mine if self.leads else [],
            **fields,
        }
        answer = self.side.ask(SYNC, 5, **words)
        found = decode_assignment(answer.assignment or b"")
        assert found is not None
        return str(answer.error_code.name), tuple(sorted(found.partitions.get("t", ())))

    def beat(self, **fields: Any) -> str:
        words = {"group_id": self.side.group, "member_id": self.id, "group_instance_id": self.instance_id}
        answer = self.side.ask(HEARTBEAT, 4, **{**words, "generation_id": self.generation, **fields})
        return str(answer.error_code.name)

    def leave(self, member_id: str | None = None) -> list[str]:
        one = {"_": "MemberIdentity", "group_instance_id": self.instance_id, "reason": None}
        one["member_id"] = self.id if member_id is None else member_id
        answer = self.side.ask(LEAVE, 5, group_id=self.side.group, members=[one])
        return [str(answer.error_code.name), *(str(each.error_code.name) for each in answer.members)]

    def commit(self, generation: int | None = None, version: int = 8) -> str:
        partition = {"_": "OffsetCommitRequestPartition", "partition_index": 0, "committed_offset": 1}
        partition |= {"committed_leader_epoch": -1, "committed_metadata": ""}
        answer = self.side.client.ask(
            COMMIT,
            version,
            group_id=self.side.group,
            generation_id_or_member_epoch=self.generation if generation is None else generation,
            member_id=self.id,
            group_instance_id=self.instance_id,
            topics=[{"_": "OffsetCommitRequestTopic", "name": "t", "partitions": [partition]}],
        )
        return str(answer.topics[0].partitions[0].error_code.name)

    def stable(self) -> "ClassicMember":
        """The only member of a classic group: it has all four partitions."""
        if self.instance_id is None:
            assert self.join() == "member_id_required"
        assert self.join() == "none"
        assert self.sync(0, 1, 2, 3) == ("none", (0, 1, 2, 3))
        return self


def kind(side: Side) -> str:
    listed = side.client.ask(LIST, 5, states_filter=(), types_filter=()).groups
    return next((str(one.group_type) for one in listed if one.group_id == side.group), "none").lower()


@pytest.fixture(scope="module", params=POLICIES)
def sides(
    request: pytest.FixtureRequest, kafka_jars: Jars, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Side, Side]]:
    """A policy, Kafka, and us."""
    settings = {**SETTINGS, "group.consumer.migration.policy": request.param}
    root = tmp_path_factory.mktemp("migrating") / "log"
    with kafka_broker(kafka_jars, settings=settings) as kafka, serving(root, settings) as ours:
        both = Side(kafka.bootstrap), Side(ours.bootstrap)
        with contextlib.closing(both[0].client), contextlib.closing(both[1].client):
            yield request.param, *both


Story = Callable[[Side], Iterator[object]]


def upgrade_and_back(side: Side) -> Iterator[object]:
    b = ClassicMember(side).stable()
    yield side.beat("a"), kind(side)
    yield b.beat(), b.sync()[0], b.commit()
    yield b.join(), b.leads
    yield b.sync(), b.beat(), b.commit(), b.commit(b.generation + 1)
    yield b.beat(generation_id=1), b.beat(member_id="x"), b.sync(protocol_name="x")[0]
    for _ in range(3):
        yield side.beat("a") if "a" in side.members and side.members["a"].epoch else "not a member"
    has = len(side.members["a"].has)
    yield has
    yield side.beat("a", epoch=-1) if side.members["a"].epoch else "not a member"
    # In a consumer group Kafka assigns what is free now only when a member joins.
    yield kind(side), b.beat() if kind(side) == "classic" else "told by us alone"
    yield b.join(), b.leads
    yield b.sync(0, 1, 2, 3), b.beat(), kind(side)
    yield b.leave()


def cooperative(side: Side) -> Iterator[object]:
    b = ClassicMember(side, protocol="cooperative-sticky").stable()
    yield side.beat("a")
    yield b.beat(), b.join(0, 1, 2, 3), b.sync()
    yield b.beat(), b.join(0, 1), b.sync(), b.beat()
    yield b.leave(), b.leave()


def joining_consumers(side: Side) -> Iterator[object]:
    yield side.beat("a")
    b = ClassicMember(side)
    yield b.join(), b.join(), b.leads, b.sync(), b.beat()
    yield ClassicMember(side).join(protocol_type="connect")
    yield ClassicMember(side, protocol="other").join()
    yield ClassicMember(side, "i").join(), ClassicMember(side, "i").join(member_id="x")
    yield b.leave("x"), b.leave(), b.leave()
    yield side.beat("a", epoch=-1), kind(side)


def static_members(side: Side) -> Iterator[object]:
    b = ClassicMember(side, "i").stable()
    yield side.beat("a", instance_id="i"), kind(side), len(side.members["a"].has)
    yield b.beat(), b.sync()[0]
    back = ClassicMember(side, "i")
    yield back.join(), kind(side)


@pytest.mark.parametrize("story", [upgrade_and_back, cooperative, joining_consumers, static_members])
def test_answers_are_kafkas(sides: tuple[str, Side, Side], story: Story) -> None:
    policy, *both = sides
    told = []
    for side in both:
        side.begin(f"{story.__name__}-{policy}")
        told.append(list(story(side)))
    print(policy, *told[0], sep="\n")
    assert told[1] == told[0]
