"""Random schedules: whatever others, storage and leadership do, a state is that of its log."""

import asyncio
from random import Random

import pytest

from sparklog.errors import RetriableError, StorageError
from sparklog_server.coordination.internal_topic import LogStatus
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys, decode

STEPS = 60


class Schedule:
    """A broker, what was asked of it, and what is in the log."""

    def __init__(self, toy: Toy, random: Random) -> None:
        self.toy = toy
        self.random = random
        self.written: list[Entry] = []  # the log, record by record
        self.asked: list[asyncio.Future[None]] = []
        self.next_amount = 0

    def entry(self) -> Entry:
        self.next_amount += 1
        name = self.random.choice("abcd") + "0"
        return Entry(name, None if self.random.random() < 0.1 else self.next_amount)

    # What happens

    def append(self) -> None:
        log = self.toy.shards.find("a0")
        if log is None:
            return
        entry = self.entry()
        appended = log.append([entry])
        self.asked.append(appended)

        def told(future: asyncio.Future[None]) -> None:
            if future.exception() is None:
                self.follow_the_log()
                assert entry in self.written[: log.next_offset]
                self.check()

        appended.add_done_callback(told)

    def append_foreign(self) -> None:
        self.toy.append_foreign(self.entry())

    def show(self) -> None:
        self.toy.root.show()

    def hold(self) -> None:
        self.toy.publisher.hold = True

    def release(self) -> None:
        self.toy.publisher.hold = False
        self.toy.publisher.release()

    def fail(self) -> None:
        publisher = self.toy.publisher
        publisher.loses_answers = self.random.random() < 0.5
        publisher.error = self.random.choice(
            [
                RetriableError("PUBLISH_UNRESOLVED", "no answer", fix="look"),
                StorageError("STORAGE_FULL", "full", fix="make room"),
            ]
        )

    def succeed(self) -> None:
        self.toy.publisher.error = None

    def read_slowly(self) -> None:
        if self.toy.root.reads is None:
            self.toy.root.reads = asyncio.Event()

    def read(self) -> None:
        if self.toy.root.reads is not None:
            self.toy.root.reads.set()
            self.toy.root.reads = None

    def hand_over(self) -> None:
        """Or take over, if it was handed over before."""
        self.toy.leadership.led_by_others ^= {0}
        self.append_foreign()
        self.show()

    def lose_the_role(self) -> None:
        self.toy.shards.release()

    def take_it_up_again(self) -> None:
        if not self.toy.shards.is_active:
            self.toy.shards.resume()

    # What must hold

    def follow_the_log(self) -> None:
        rows = self.toy.log.read(TOPIC, 0, len(self.written))
        pairs = zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)
        self.written += [decode(key, value, "here") for key, value in pairs]

    def check(self) -> None:
        """Everything below `next_offset` is applied, nothing above."""
        self.follow_the_log()
        log = self.toy.shards.find("a0")
        if log is not None and log.status is LogStatus.READY:
            expected: dict[str, int] = {}
            for name, amount in self.written[: log.next_offset]:
                expected.pop(name, None)
                if amount is not None:
                    expected[name] = amount
            assert log.state.amounts == expected

    async def step(self) -> None:
        steps = [self.append] * 6 + [self.append_foreign] * 3 + [self.show] * 3
        steps += [self.hold, self.fail, self.read_slowly] + [self.release, self.succeed, self.read] * 2
        if self.random.random() < 0.3:
            steps += [self.hand_over] * 2 + [self.lose_the_role] + [self.take_it_up_again] * 2
        self.random.choice(steps)()
        for _ in range(self.random.choice([0, 0, 1, 2, 5])):
            await asyncio.sleep(0)
        self.check()

    async def wind_down(self) -> None:
        """All goes well from now on: whoever asked is told, and the state is that of the whole log."""
        self.succeed()
        self.read()
        self.release()
        self.take_it_up_again()
        if self.toy.leadership.led_by_others:
            self.hand_over()
        await self.toy.look()
        await self.toy.append(self.entry())
        self.check()
        assert all(appended.done() for appended in self.asked)
        assert self.toy.log_of(0).next_offset == len(self.written)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", range(25))
def test_the_state_is_that_of_the_log_whatever_happens(toys: Toys, seed: int) -> None:
    async def scenario(toy: Toy) -> None:
        schedule = Schedule(toy, Random(seed))
        for _ in range(STEPS):
            await schedule.step()
        await schedule.wind_down()

    toys.run(scenario)
