"""Partitions that move between brokers: a log is of one leader epoch, and what was accepted in it."""

import asyncio
from typing import Any

import pytest

from sparklog.errors import FencedError
from sparklog.metadata import NO_NODE
from sparklog_server.coordination.internal_topic import LogStatus
from sparklog_server.coordination.records import Reading
from sparklog_server.coordination.state_log import outcome_of
from sparklog_server.protocol.apis import ErrorCode
from tests.server.coordination.controller import Controller
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys


def controller_of(toy: Toy, toys: Toys) -> Controller:
    return Controller(toys.url, toys.clock, TOPIC)


class TestMoving:
    def test_nobody_coordinates_what_is_not_assigned_yet(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                assert list(first.shards) == []
                assert first.shards.error_of("a0") == ErrorCode.not_coordinator
                controller.assign(1)
                await first.look()
                await second.look()
                assert [log.led.leader_epoch for log in first.shards] == [1, 1, 1]
                assert (list(second.shards), second.loaded) == ([], [])
                assert second.shards.error_of("a0") == ErrorCode.not_coordinator

        toys.run(scenario, brokers=2, joined=True)

    def test_the_next_coordinator_has_what_was_acknowledged(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                await first.append(Entry("a0", 1), Entry("b0", 2))
                controller.elect(2, [0])
                await second.look()
                assert second.amounts() == {"a0": 1, "b0": 2}
                await second.append(Entry("b0", 3))
                await first.look()
                assert first.shards.error_of("a0") == ErrorCode.not_coordinator
                assert (first.resigned, first.resigned_as) == ([0], [LogStatus.READY])
                assert second.amounts() == {"a0": 1, "b0": 3}

        toys.run(scenario, brokers=2, joined=True)

    def test_one_that_went_and_came_back_unseen_is_loaded_anew(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                await first.append(Entry("a0", 1))
                before, untouched = first.log_of(0), first.log_of(1)
                controller.elect(2, [0])
                await second.look()
                await second.append(Entry("a0", 2))
                controller.elect(1, [0])
                await first.look()
                assert before.status is LogStatus.CLOSED
                assert first.resigned == [0]
                assert (first.log_of(0).led.leader_epoch, first.amounts()) == (3, {"a0": 2})
                assert first.log_of(1) is untouched
                assert await outcome_of(before.append([Entry("b0", 1)])) == ErrorCode.not_coordinator

        toys.run(scenario, brokers=2, joined=True)

    def test_what_waited_while_it_went_and_came_back_is_never_in_the_log(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                first.publisher.hold = True
                late = first.append(Entry("a0", 1))
                await first.settle()
                controller.elect(2, [0])
                await second.look()
                await second.append(Entry("a0", 2))
                controller.elect(1, [0])
                first.publisher.hold = False
                first.publisher.release()  # which refuses it: only now this broker hears of it all
                with pytest.raises(FencedError, match="COORDINATOR_MOVED"):
                    await late
                await first.settle()
                assert first.amounts() == {"a0": 2}
                assert first.log.log_end_offset(TOPIC, 0) == 1
                await first.append(Entry("b0", 3))
                assert first.amounts() == {"a0": 2, "b0": 3}

        toys.run(scenario, brokers=2, joined=True)

    def test_an_append_is_of_the_epoch_in_which_it_was_accepted(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            with controller_of(toy, toys) as controller:
                controller.assign(1)
                await toy.look()
                late = toy.append(Entry("a0", 1))
                controller.bounce(1, [0])
                toy.log.refresh(force=True)  # before it is handed in; nothing is shown yet
                assert await outcome_of(late) == ErrorCode.not_coordinator
                assert toy.log.log_end_offset(TOPIC, 0) == 0

        toys.run(scenario, joined=True)

    def test_what_arrived_before_it_moved_is_with_the_next_one_whatever_was_told(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                first.publisher.hold = True
                appended = first.append(Entry("a0", 1))
                await first.settle()
                (part,), _ = first.publisher.held[0]
                first.publisher.append_at_once(part)
                controller.elect(2, [0])
                await first.look()
                assert await outcome_of(appended) == ErrorCode.not_coordinator
                await second.look()
                assert second.amounts() == {"a0": 1}
                first.publisher.held.clear()

        toys.run(scenario, brokers=2, joined=True)

    def test_nobody_is_answered_after_the_image_that_takes_it_away_is_known(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                log = first.log_of(0)
                assert first.shards.may_answer(log)
                controller.elect(2, [0])
                first.log.refresh(force=True)  # as the publisher's thread does; nothing is shown yet
                assert first.shards.find("a0") is log
                assert first.shards.error_of("a0") == ErrorCode.not_coordinator
                assert first.shards.error_of("a1") == ErrorCode.none
                assert not first.shards.may_answer(log)
                controller.elect(1, [0])
                first.log.refresh(force=True)  # led again, but not in the same epoch
                assert first.shards.error_of("a0") == ErrorCode.not_coordinator
                assert second.shards.error_of("a0") == ErrorCode.not_coordinator

        toys.run(scenario, brokers=2, joined=True)

    def test_a_fence_ends_it_in_the_same_commit(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(2)
                await second.look()
                second.publisher.hold = True
                late = second.append(Entry("a0", 1))
                await second.settle()
                controller.fence(2)
                controller.elect(1, [0])
                second.publisher.release()
                assert await outcome_of(late) == ErrorCode.not_coordinator
                await second.settle()
                assert list(second.shards) == []
                await first.look()
                assert (first.amounts(), [log.partition for log in first.shards]) == ({}, [0])

        toys.run(scenario, brokers=2, joined=True)

    def test_one_that_nobody_leads_is_nobodys(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            with controller_of(toy, toys) as controller:
                controller.assign(1)
                controller.elect(NO_NODE, [1])
                await toy.look()
                assert [log.partition for log in toy.shards] == [0, 2]
                assert toy.shards.error_of("a1") == ErrorCode.not_coordinator
                controller.elect(1, [1])
                await toy.look()
                assert [log.led.leader_epoch for log in toy.shards] == [1, 1, 3]

        toys.run(scenario, joined=True)


class TestLoading:
    def test_one_that_moves_while_it_is_loaded_is_not_told_of(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                await first.append(Entry("a0", 1))
                second.root.reads = asyncio.Event()
                controller.elect(2, [0])
                await second.look()
                log = second.log_of(0)
                assert second.shards.error_of("a0") == ErrorCode.coordinator_load_in_progress
                controller.bounce(2, [0])
                await second.look()
                assert (log.status, second.loaded) == (LogStatus.CLOSED, [])
                second.root.reads.set()
                await second.settle()
                assert (second.loaded, second.amounts(), log.state.history) == ([0], {"a0": 1}, [])

        toys.run(scenario, brokers=2, joined=True)

    def test_however_much_is_loaded_the_loop_has_its_turns(
        self, toys: Toys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("sparklog_server.coordination.state_log.APPLIED_AT_ONCE", 10)

        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                await first.append(*(Entry(f"n{number}0", number) for number in range(35)))
                controller.elect(2, [0])
                second.log.refresh(force=True)
                second.root.show()
                log, seen = second.log_of(0), set[int]()
                while log.status is LogStatus.LOADING:
                    seen.add(len(log.state.history))
                    await asyncio.sleep(0)
                assert seen == {0, 10, 20, 30}
                assert len(log.state.history) == 35

        toys.run(scenario, brokers=2, joined=True)

    def test_only_some_are_loaded_at_once(self, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not counted in reads of the store: what is wanted together is read together."""
        monkeypatch.setattr("sparklog_server.coordination.shards.LOADED_AT_ONCE", 1)
        read, at_once, most = Reading.read, 0, 0

        async def counted(reading: Reading[Any], *words: Any) -> Any:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            try:
                return await read(reading, *words)
            finally:
                at_once -= 1

        async def scenario(first: Toy, second: Toy) -> None:
            with controller_of(first, toys) as controller:
                controller.assign(1)
                await first.look()
                for partition in range(3):
                    await first.append(Entry(f"a{partition}", 1))
                controller.elect(2)
                monkeypatch.setattr(Reading, "read", counted)
                await second.look()
                await second.settle()
                await second.settle()
                assert sorted(second.loaded) == [0, 1, 2]
                assert most == 1

        toys.run(scenario, brokers=2, joined=True)
