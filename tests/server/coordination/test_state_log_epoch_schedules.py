"""Random schedules of brokers among which a partition moves: what each knows of it is what its log says."""

import asyncio
from random import Random

import pytest

from sparklog.metadata import NO_NODE
from sparklog_server.protocol.apis import ErrorCode
from tests.server.coordination.controller import Controller
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys, decode

STEPS = 50
EPOCH = 1_000_000  # an amount is a leader epoch, in which it was accepted, and a number


class Schedule:
    """Brokers, their controller, and what is in the log."""

    def __init__(self, brokers: list[Toy], controller: Controller, random: Random) -> None:
        self.brokers = brokers
        self.controller = controller
        self.random = random
        self.written: list[Entry] = []
        self.asked: list[asyncio.Future[None]] = []
        self.acknowledged = 0
        self.next_number = 0

    # What happens

    def append(self, toy: Toy) -> None:
        if toy.shards.error_of("a0"):
            return
        log = toy.log_of(0)
        self.next_number += 1
        name = self.random.choice("abcd") + "0"
        entry = Entry(name, log.led.leader_epoch * EPOCH + self.next_number)
        appended = log.append([entry])
        self.asked.append(appended)

        def told(future: asyncio.Future[None]) -> None:
            if future.exception() is None:
                self.acknowledged += 1
                self.follow_the_log()
                assert entry in self.written[: log.next_offset]
                assert entry in log.state.history

        appended.add_done_callback(told)

    def append_foreign(self, toy: Toy) -> None:
        self.next_number += 1
        self.follow_the_log()
        epoch = self.written[-1].amount // EPOCH if self.written and self.written[-1].amount else 0
        toy.append_foreign(Entry("f0", epoch * EPOCH + self.next_number))

    def elect(self, _toy: Toy) -> None:
        self.controller.elect(self.random.choice([NO_NODE, 1, 2]), [0])

    def bounce(self, _toy: Toy) -> None:
        """Away from whoever leads it, and back."""
        image = self.controller.log.refresh(force=True)
        leader = image.topic(TOPIC).partitions[0].leadership.leader
        if leader != NO_NODE:
            self.controller.bounce(leader, [0])

    def show(self, toy: Toy) -> None:
        toy.root.show()

    def refresh(self, toy: Toy) -> None:
        toy.log.refresh(force=True)

    def hold(self, toy: Toy) -> None:
        toy.publisher.hold = True

    def release(self, toy: Toy) -> None:
        toy.publisher.hold = False
        toy.publisher.release()

    def read_slowly(self, toy: Toy) -> None:
        if toy.root.reads is None:
            toy.root.reads = asyncio.Event()

    def read(self, toy: Toy) -> None:
        if toy.root.reads is not None:
            toy.root.reads.set()
            toy.root.reads = None

    # What must hold

    def follow_the_log(self) -> None:
        rows = self.controller.log.read(TOPIC, 0, len(self.written))
        pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        self.written += [decode(key, value, "here") for key, value in pairs]

    def check(self) -> None:
        self.follow_the_log()
        epochs = [entry.amount // EPOCH for entry in self.written if entry.amount is not None]
        assert epochs == sorted(epochs), "something was published after the end of the epoch that accepted it"
        for toy in self.brokers:
            if toy.shards.error_of("a0") == ErrorCode.none:
                log = toy.log_of(0)
                expected = dict(self.written[: log.next_offset])
                assert log.state.amounts == expected

    async def step(self) -> None:
        steps = [self.append] * 8 + [self.append_foreign, self.elect, self.bounce, self.read_slowly]
        steps += [self.show, self.refresh, self.release, self.read] * 2 + [self.hold] * 2
        self.random.choice(steps)(self.random.choice(self.brokers))
        for _ in range(self.random.choice([0, 0, 1, 2, 5])):
            await asyncio.sleep(0)
        self.check()

    async def wind_down(self) -> None:
        """All goes well from now on: whoever asked is told, and the leader has everything."""
        for toy in self.brokers:
            self.read(toy)
            self.release(toy)
        self.controller.elect(2, [0])
        for toy in self.brokers:
            await toy.look()
        leader = self.brokers[1]
        self.append(leader)
        await leader.settle()
        assert all(appended.done() for appended in self.asked)
        assert not self.asked[-1].exception()
        self.check()
        assert leader.log_of(0).next_offset == len(self.written)


@pytest.mark.parametrize("seed", range(12))
def test_each_state_is_that_of_the_log_and_epochs_follow_each_other(toys: Toys, seed: int) -> None:
    async def scenario(*brokers: Toy) -> None:
        with Controller(toys.url, toys.clock, TOPIC) as controller:
            controller.assign(1)
            await brokers[0].look()
            schedule = Schedule(list(brokers), controller, Random(seed))
            for _ in range(STEPS):
                await schedule.step()
            await schedule.wind_down()

    toys.run(scenario, brokers=2, joined=True)
