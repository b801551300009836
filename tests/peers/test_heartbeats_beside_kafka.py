"""The same heartbeats (KIP-848) to Apache Kafka and to us: errors step by step, then balance and moves."""

import contextlib
import random
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from benchmarks.peers.fetching import Jars
from benchmarks.peers.kafka_process import kafka_broker
from tests.support.broker_process import serving, until
from tests.support.wire_client import WireClient

METADATA, FIND, JOIN_GROUP, CREATE, BEAT, DESCRIBE = 3, 10, 11, 19, 68, 69
TOPICS = {"t": 4, "u": 3, "v": 5}
SETTINGS = {"group.consumer.assignment.interval.ms": "0", "group.consumer.migration.policy": "disabled"}
LOADING = {"coordinator_not_available", "coordinator_load_in_progress", "not_coordinator"}
JOINING = {"rebalance_timeout": 60_000, "topic_partitions": []}
Held = dict[str, set[tuple[str, int]]]


class Member:
    def __init__(self, name: str) -> None:
        self.id = f"{name}-{uuid.uuid4()}"
        self.epoch = 0
        self.topics: tuple[str, ...] = ()
        self.has: set[tuple[str, int]] = set()


class Side:
    """A broker, and the members of a group as it sees them."""

    def __init__(self, bootstrap: str) -> None:
        host, port = bootstrap.split(":")
        self.client = WireClient(host, int(port))
        topics = [
            {"_": "CreatableTopic", "name": name, "num_partitions": count, "replication_factor": 1}
            | {"assignments": [], "configs": []}
            for name, count in TOPICS.items()
        ]
        self.client.ask(CREATE, 7, topics=topics, timeout=30_000)
        self.names: dict[uuid.UUID, str] = until(self._names)
        self.ids = {name: topic_id for topic_id, name in self.names.items()}
        until(
            lambda: (
                not self.client.ask(FIND, 4, key_type=0, coordinator_keys=("g",)).coordinators[0].error_code
            )
        )
        self.group = ""
        self.members: dict[str, Member] = {}

    def _names(self) -> dict[uuid.UUID, str] | None:
        found = self.client.ask(METADATA, 12, topics=None).topics
        names = {one.topic_id: one.name for one in found if one.name in TOPICS and one.partitions}
        return names if len(names) == len(TOPICS) else None

    def begin(self, group: str) -> None:
        self.group, self.members = group, {}

    def ask(self, key: int, version: int, **fields: Any) -> Any:
        """Ask until the coordinator is loaded."""
        while True:
            answer = self.client.ask(key, version, **fields)
            if answer.error_code.name not in LOADING:
                return answer
            time.sleep(0.1)

    def beat(self, name: str, epoch: int | None = None, version: int = 1, **fields: Any) -> str:
        """One heartbeat; the error's name. With the member's epoch, unless another one is given."""
        member = self.members.setdefault(name, Member(name))
        sent = member.epoch if epoch is None else epoch
        if sent == 0:
            fields = {**JOINING, "subscribed_topic_names": member.topics or ("t",), **fields}
        words = {"topic_partitions": None, "group_id": self.group, "member_id": member.id, **fields}
        answer = self.ask(BEAT, version, member_epoch=sent, **words)
        if answer.error_code.name == "none":
            if sent < 0:
                del self.members[name]
                return "none"
            member.epoch = answer.member_epoch
            member.topics = fields.get("subscribed_topic_names", member.topics) or ()
            if answer.assignment is not None:
                found = answer.assignment.topic_partitions
                member.has = {(self.names[one.topic_id], p) for one in found for p in one.partitions}
        return str(answer.error_code.name)

    def settle(self) -> Held:
        """Let all members follow, until the group is stable; what they have then."""
        until(self._is_stable, 60, f"{self.group} is stable", every_seconds=0.05)
        return {name: set(member.has) for name, member in self.members.items()}

    def _is_stable(self) -> bool:
        for name, member in list(self.members.items()):
            owned = [
                {"_": "TopicPartitions", "topic_id": self.ids[topic]}
                | {"partitions": [p for other, p in sorted(member.has) if other == topic]}
                for topic in TOPICS
            ]
            assert self.beat(name, topic_partitions=owned) == "none"
        (found,) = self.client.ask(
            DESCRIBE, 1, group_ids=(self.group,), include_authorized_operations=False
        ).groups
        assert found.error_code.name == "none", found
        return bool(found.group_state == ("Stable" if self.members else "Empty"))


@pytest.fixture(scope="module")
def sides(kafka_jars: Jars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    """Kafka, and us."""
    root = tmp_path_factory.mktemp("beside") / "log"
    with kafka_broker(kafka_jars, settings=SETTINGS) as kafka, serving(root, SETTINGS) as ours:
        both = Side(kafka.bootstrap), Side(ours.bootstrap)
        with contextlib.closing(both[0].client), contextlib.closing(both[1].client):
            yield both


WRONG: list[dict[str, Any]] = [
    {"subscribed_topic_names": None},
    {"subscribed_topic_names": ()},
    {"subscribed_topic_names": ("unknown",)},
    {"subscribed_topic_names": None, "subscribed_topic_regex": ""},
    {"subscribed_topic_names": None, "subscribed_topic_regex": "("},
    {"subscribed_topic_names": None, "subscribed_topic_regex": "t|u"},
    {"rebalance_timeout": -1},
    {"topic_partitions": None},
    {"server_assignor": "sticky"},
    {"instance_id": ""},
    {"rack_id": ""},
    {"member_id": ""},
    {"member_id": "", "version": 0},
    {"epoch": -1},
    {"epoch": -2},
    {"epoch": -2, "instance_id": "i"},
    {"epoch": -3},
    {"epoch": 5},
]


@pytest.mark.parametrize("fields", WRONG, ids=str)
def test_first_heartbeats(sides: tuple[Side, Side], fields: dict[str, Any]) -> None:
    for side in sides:
        side.begin(f"first-{WRONG.index(fields)}")
    kafka, ours = (side.beat("a", **fields) for side in sides)
    assert ours == kafka


def test_members_of_the_other_protocol(sides: tuple[Side, Side]) -> None:
    """Without migration: a classic member at a consumer group, and the reverse."""

    def classic(side: Side, group: str) -> tuple[str, str]:
        protocol = {
            "_": "JoinGroupRequestProtocol",
            "name": "range",
            "metadata": b"\0\0\0\0\0\0\xff\xff\xff\xff",
        }
        fields = {
            "group_id": group,
            "protocol_type": "consumer",
            "protocols": [protocol],
            "session_timeout": 30_000,
            "rebalance_timeout": 1_000,
        }
        first = side.ask(JOIN_GROUP, 9, member_id="", **fields)
        if first.error_code.name != "member_id_required":
            return first.error_code.name, ""
        return "member_id_required", side.ask(
            JOIN_GROUP, 9, member_id=first.member_id, **fields
        ).error_code.name

    at_consumers, at_classic_members = [], []
    for side in sides:
        side.begin("of-consumers")
        assert side.beat("a") == "none"
        at_consumers.append(classic(side, "of-consumers"))
        side.begin("of-classic-members")
        assert classic(side, "of-classic-members") == ("member_id_required", "none")
        at_classic_members.append(side.beat("a"))
    assert at_classic_members == ["group_id_not_found"] * 2
    assert at_consumers == [("inconsistent_group_protocol", "")] * 2


@pytest.mark.parametrize("assignor", ["uniform", "range"])
@pytest.mark.parametrize("seed", range(2))
def test_a_group_lives(sides: tuple[Side, Side], assignor: str, seed: int) -> None:
    rng = random.Random(f"{assignor}-{seed}")
    moves = [0, 0]
    before: list[Held] = [{}, {}]
    for side in sides:
        side.begin(f"lives-{assignor}-{seed}")
    for step in range(25):
        what = rng.choice(["join", "join", "subscribe", "leave", "wrong", "again"])
        names = sorted(sides[0].members)
        name, topics = (
            rng.choice(names) if names else "m",
            tuple(rng.sample(sorted(TOPICS), rng.randint(1, 3))),
        )
        wrong = rng.choice([1_000, -3])
        words: dict[str, Any] = {}
        if what == "join" or not names:
            name = f"m{step}"
            words = {"subscribed_topic_names": topics, "server_assignor": assignor}
        elif what == "subscribe":
            words = {"subscribed_topic_names": topics}
        elif what == "leave":
            words = {"epoch": -1}
        elif what == "wrong":
            words = {"epoch": wrong}
        else:
            words = {"epoch": 0}
        errors = [side.beat(name, **words) for side in sides]
        assert errors[1] == errors[0], (step, what)
        after = [side.settle() for side in sides]
        weights = [sum(len(some) ** 2 for some in held.values()) for held in after]
        assert weights[1] <= weights[0], (step, what, after)
        for number in range(2):
            had = before[number]
            moves[number] += sum(len(some - had.get(one, set())) for one, some in after[number].items())
        before = after
    print(f"{assignor}, seed {seed}: Kafka moves {moves[0]} partitions, we {moves[1]}")
    assert moves[1] <= 1.2 * moves[0]
