"""Random schedules on the pure consumer group: no partition has two owners, and all have one in the end."""

from random import Random
from typing import Any

import pytest

from sparklog_server.groups.consumer_group import ConsumerGroup
from sparklog_server.groups.consumer_members import ConsumerGroupState
from sparklog_server.protocol.apis import ErrorCode
from tests.server.groups.consumers import SESSION_MS, Client, World, topic_id

STEPS, SEEDS = 300, 60
TOPICS: tuple[dict[str, Any], ...] = (
    {"topics": ("t",)},
    {"topics": ("t", "u")},
    {"topics": ("u",), "assignor": "range"},
)


class Schedule:
    """Clients that beat, stall, lose answers and come back; a coordinator that moves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = World({"t": 4, "u": 3}, interval_ms=self.random.choice([0, 50]))
        self.clients: list[Client] = []
        self.next_name = 0

    def step(self) -> None:
        actions = [self.beat] * 12 + [self.follow] * 8 + [self.add] * 2
        actions += [
            self.lose,
            self.leave,
            self.wait,
            self.move,
            self.change_topics,
            self.lie,
            self.resubscribe,
        ]
        self.random.choice(actions)()
        self.check()

    def any_client(self) -> Client:
        if not self.clients:
            self.add()
        return self.random.choice(self.clients)

    def add(self) -> None:
        if len(self.clients) < 5:
            self.next_name += 1
            instance_id = self.random.choice([None, None, "i1", "i2"])
            held = {one.instance_id for one in self.clients}
            instance_id = None if instance_id in held else instance_id
            self.clients.append(Client(f"m{self.next_name}", instance_id, **self.random.choice(TOPICS)))

    def beat(self) -> None:
        client = self.any_client()
        answer = self.world.beat(client, is_full=self.random.random() < 0.2)
        if answer.error is ErrorCode.unreleased_instance_id:
            self.clients.remove(client)

    def lose(self) -> None:
        """The answer is lost; the client repeats its request later."""
        self.world.beat(self.any_client(), is_lost=True)

    def follow(self) -> None:
        self.any_client().follow()

    def leave(self) -> None:
        client = self.any_client()
        self.world.leave(client, -1 if client.instance_id is None else self.random.choice([-1, -2]))
        self.clients.remove(client)

    def wait(self) -> None:
        """Some sessions end; their clients are dead, and the others beat in time."""
        stalled = self.any_client()
        for _ in range(4):
            self.world.pass_time(SESSION_MS // 3)
            for client in self.clients:
                if client is not stalled:
                    client.follow()
                    self.world.beat(client)
        self.clients.remove(stalled)

    def move(self) -> None:
        self.world.restart()

    def change_topics(self) -> None:
        self.world.change_topics(**{self.random.choice("tu"): self.random.randrange(6)})

    def lie(self) -> None:
        """A client sends an epoch that it does not have."""
        client = self.any_client()
        client.epoch = max(0, client.epoch + self.random.choice([-2, -1, 1, 5]))
        if not client.epoch:
            client.owned = client.keeps = frozenset()
        self.world.beat(client)

    def resubscribe(self) -> None:
        client = self.any_client()
        client.fields = self.random.choice(TOPICS)
        self.world.beat(client, is_full=True)

    def check(self) -> None:
        owners: dict[tuple[str, int], str] = {}
        for client in self.clients:
            for place in client.owned:
                assert owners.setdefault(place, client.name) == client.name, f"{place} has two owners"

    def finish(self) -> None:
        """All clients beat until the group is stable: everything has an owner."""
        world = self.world
        world.change_topics(t=4, u=3)
        self.add()
        for _ in range(30):
            world.pass_time(SESSION_MS // 5)
            for client in list(self.clients):
                client.follow()
                if world.beat(client).error is ErrorCode.unreleased_instance_id:
                    self.clients.remove(client)
                self.check()
        for client in self.clients:
            client.follow()
        assert world.group.state is ConsumerGroupState.STABLE
        subscribed = {name for one in world.group.members.values() for name in one.subscription.topics}
        owned = {place for client in self.clients for place in client.owned}
        wanted = {(topic_id(name), p) for name in subscribed for p in range(world.topics[name])}
        gone = {m for m in world.group.members if m not in {client.name for client in self.clients}}
        assert not gone
        assert owned == wanted


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.sampled(10)
def test_a_partition_never_has_two_owners(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(STEPS):
        schedule.step()
    schedule.finish()


def test_two_owners_in_the_log_are_resolved_for_the_earlier_one() -> None:
    world = World({"t": 1})
    a, b = Client("a"), Client("b")
    world.join(a)
    later = World({"t": 1})
    later.group.epoch = later.group.target_epoch = 7
    later.join(b)
    world.durable |= later.durable
    world.restart()
    group: ConsumerGroup = world.group
    assert group.owners == {(topic_id("t"), 0): "a"}
