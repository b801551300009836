"""Random schedules of a fleet that changes its protocol: no partition has two owners, and all have one."""

from random import Random

import pytest

from sparklog_server.groups.consumer_members import ConsumerGroupState
from sparklog_server.groups.messages import GroupState
from tests.server.groups.consumers import Client, topic_id
from tests.server.groups.migrating import ClassicClient, Migrating

STEPS, SEEDS = 300, 60
STEP_MS = 50


class Schedule:
    """Clients of both protocols that come, go on, stall and leave; a coordinator that moves."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.world = Migrating({"t": 4, "u": 3}, interval_ms=self.random.choice([0, 40]))
        self.is_eager = self.random.random() < 0.4
        self.classic: list[ClassicClient] = []
        self.consumers: list[Client] = []
        self.next_name = 0
        self.conversions = 0

    def step(self) -> None:
        was_classic = self.world.classic is not None
        actions = [self.run_classic] * 14 + [self.beat] * 8 + [self.follow] * 6
        actions += [self.add_classic, self.add_consumer, self.leave_classic, self.leave_consumer] * 2
        actions += [self.wait, self.wait, self.move, self.replace, self.stall]
        self.random.choice(actions)()
        self.conversions += was_classic is not (self.world.classic is not None)
        self.check()

    @property
    def _clients(self) -> list[ClassicClient | Client]:
        return [*self.classic, *self.consumers]

    @property
    def _held(self) -> set[str | None]:
        return {one.instance_id for one in self._clients}

    def _name(self) -> tuple[str, str | None]:
        self.next_name += 1
        instance_id = self.random.choice([None, None, "i1", "i2"])
        return f"m{self.next_name}", None if instance_id in self._held else instance_id

    def add_classic(self) -> None:
        if len(self.classic) < 3:
            name, instance_id = self._name()
            topics = self.random.choice([("t",), ("t", "u")])
            self.classic.append(ClassicClient(name, instance_id, eager=self.is_eager, topics=topics))

    def add_consumer(self) -> None:
        if len(self.consumers) < 3:
            name, instance_id = self._name()
            self.consumers.append(Client(name, instance_id, topics=self.random.choice([("t",), ("t", "u")])))

    def run_classic(self) -> None:
        if self.classic:
            self.random.choice(self.classic).run(self.world)

    def beat(self, client: Client | None = None) -> None:
        if self.consumers:
            self.world.beat(client or self.random.choice(self.consumers))

    def follow(self) -> None:
        if self.consumers:
            self.random.choice(self.consumers).follow()

    def leave_classic(self) -> None:
        if self.classic:
            client = self.classic.pop(self.random.randrange(len(self.classic)))
            client.owned = frozenset()
            self.world.classic_leave(client)

    def leave_consumer(self) -> None:
        if self.consumers:
            client = self.consumers.pop(self.random.randrange(len(self.consumers)))
            is_static = client.instance_id is not None
            self.world.leave(client, self.random.choice([-1, -2]) if is_static else -1)

    def stall(self) -> None:
        """A client dies; the others go on until its session is over."""
        if self.classic and self.random.random() < 0.5:
            self.classic.pop(self.random.randrange(len(self.classic)))
        elif self.consumers:
            self.consumers.pop(self.random.randrange(len(self.consumers)))
        self.wait(30)

    def replace(self) -> None:
        """A static member dies, and comes back with the other protocol."""
        for classic in self.classic:
            if classic.instance_id is not None and classic.generation >= 0 and not classic.waits:
                self.classic.remove(classic)
                self.consumers.append(Client(f"{classic.name}'", classic.instance_id, topics=classic.topics))
                self.beat(self.consumers[-1])
                return
        for client in self.consumers:
            if client.instance_id is not None and client.epoch > 0:
                self.consumers.remove(client)
                topics = client.fields["topics"]
                self.classic.append(
                    ClassicClient(f"{client.name}'", client.instance_id, eager=self.is_eager, topics=topics)
                )
                self.classic[-1].run(self.world)
                return

    def wait(self, steps: int = 1) -> None:
        """Time passes, and all clients go on; a rebalance takes several of these."""
        for _ in range(steps):
            self.world.pass_time(STEP_MS)
            for client in list(self.consumers):
                client.follow()
                self.beat(client)
            for classic in list(self.classic):
                classic.run(self.world)
                self.check()

    def move(self) -> None:
        self.world.restart()

    def check(self) -> None:
        owners: dict[tuple[str, int], str] = {}
        for client in self._clients:
            for place in client.owned:
                assert owners.setdefault(place, client.name) == client.name, f"{place} has two owners"

    def finish(self) -> None:
        """All go on until nothing changes: everything has an owner."""
        self.add_classic()
        self.add_consumer()
        for _ in range(200):
            self.wait()
            self.check()
        state = self.world.group.state if self.world.classic is None else self.world.classic.state
        assert state in {ConsumerGroupState.STABLE, GroupState.STABLE}
        subscribed = {name for one in self.classic for name in one.topics}
        subscribed |= {name for one in self.consumers for name in one.fields["topics"]}
        owned = {place for client in self._clients for place in client.owned}
        assert owned == {(topic_id(name), p) for name in subscribed for p in range(self.world.topics[name])}
        assert (self.world.classic is None) is bool(self.consumers)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.sampled(10)
def test_a_partition_never_has_two_owners(seed: int) -> None:
    schedule = Schedule(seed)
    for _ in range(STEPS):
        schedule.step()
    schedule.finish()
    assert schedule.conversions
