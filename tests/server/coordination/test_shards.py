"""Which partitions a broker coordinates: opened, handed over, released and taken up again."""

import asyncio

import pytest

from sparklog.errors import FencedError, RetriableError
from sparklog.metadata import plan_add_partitions
from sparklog_server.coordination.internal_topic import LogStatus
from sparklog_server.coordination.state_log import outcome_of
from sparklog_server.protocol.apis import ErrorCode
from tests.foreign_records import append_foreign
from tests.server.coordination.toy import PARTITIONS, TOPIC, Entry, Toy, Toys


async def move(partition: int, giver: Toy, taker: Toy) -> None:
    """A commit says that another broker leads a partition, and both see it: the giver last."""
    giver.leadership.led_by_others.add(partition)
    taker.leadership.led_by_others.discard(partition)
    taker.append_foreign(Entry(f"moved{partition}", 1))
    await taker.look()
    await giver.look()


class TestHandingOver:
    def test_what_was_acknowledged_is_what_the_next_broker_goes_on_with(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            second.leadership.led_by_others = {0, 1, 2}
            second.shards.resume()
            await first.append(Entry("a0", 1), Entry("b0", 1))
            await first.append(Entry("a0", 2))
            assert second.shards.error_of("a0") == ErrorCode.not_coordinator
            await move(0, first, second)
            assert first.shards.error_of("a0") == ErrorCode.not_coordinator
            assert second.amounts() == {"a0": 2, "b0": 1, "moved0": 1}
            await second.append(Entry("b0", None))
            await move(0, second, first)
            assert second.shards.find("a0") is None
            assert first.amounts() == {"a0": 2, "moved0": 1}

        toys.run(scenario, brokers=2)

    def test_whoever_waits_is_sent_away_and_nothing_more_is_applied(self, toys: Toys) -> None:
        async def scenario(first: Toy, second: Toy) -> None:
            second.leadership.led_by_others = {0, 1, 2}
            second.shards.resume()
            log = first.log_of(0)
            first.publisher.hold = True
            on_its_way = first.append(Entry("a0", 1))
            await first.settle()
            await move(0, first, second)
            with pytest.raises(FencedError, match="COORDINATOR_MOVED"):
                await on_its_way
            assert await outcome_of(on_its_way) == ErrorCode.not_coordinator
            assert await log.write([Entry("b0", 1)]) == ErrorCode.not_coordinator
            first.publisher.release()
            await first.settle()
            assert (log.status, log.state.history) == (LogStatus.CLOSED, [])
            await second.look()
            assert second.amounts() == {"moved0": 1, "a0": 1}

        toys.run(scenario, brokers=2)

    def test_the_coordinator_is_told_before_its_log_is_closed(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.leadership.led_by_others = {1}
            toy.append_foreign(Entry("a1", 1))
            await toy.look()
            assert toy.resigned_as == [LogStatus.READY]

        toys.run(scenario)

    def test_other_partitions_go_on(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            others = [toy.log_of(1), toy.log_of(2)]
            toy.publisher.hold = True
            on_its_way = toy.append(Entry("a1", 1))
            toy.leadership.led_by_others = {0}
            toy.append_foreign(Entry("a0", 1))
            await toy.look()
            assert toy.resigned == [0]
            assert [toy.log_of(1), toy.log_of(2)] == others == list(toy.shards)
            toy.publisher.release()
            await on_its_way
            assert toy.amounts(1) == {"a1": 1}

        toys.run(scenario)

    def test_one_that_is_handed_over_while_it_is_loaded_is_not_told_of(self, toys: Toys) -> None:
        async def fill(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))

        async def scenario(toy: Toy) -> None:
            toy.root.reads = asyncio.Event()
            await toy.open()
            log = toy.shards.find("a0")
            assert log is not None
            toy.leadership.led_by_others = {0}
            toy.append_foreign(Entry("b0", 1))
            toy.root.show()
            toy.root.reads.set()
            await toy.settle()
            assert (toy.loaded, toy.resigned) == ([1, 2], [0])
            assert log.state.history == []

        toys.run(fill)
        toys.run(scenario, opened=False)

    def test_more_partitions_put_names_elsewhere_and_everything_starts_over(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))
            before = list(toy.shards)
            toy.log.metadata.publish(
                lambda image: [one for one in [plan_add_partitions(image, TOPIC, 5)] if one is not None]
            )
            toy.root.show()
            await toy.settle()
            assert sorted(toy.resigned) == [0, 1, 2]
            assert [log.status for log in before] == [LogStatus.CLOSED] * 3
            assert toy.shards.count == 5
            assert sorted(toy.loaded) == [0, 0, 1, 1, 2, 2, 3, 4]
            assert toy.amounts() == {"a0": 1}
            await toy.append(Entry("a4", 2))
            assert toy.shards.of("a4").partition == 4

        toys.run(scenario)

    def test_a_topic_that_was_made_anew_starts_over(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))
            toy.log.delete_topic(TOPIC)
            toy.root.show()
            await toy.settle()
            assert (toy.shards.count, list(toy.shards), sorted(toy.resigned)) == (0, [], [0, 1, 2])
            assert toy.shards.find("a0") is None
            assert toy.shards.error_of("a0") == ErrorCode.none
            assert await toy.shards.ensure_topic() == ErrorCode.none
            await toy.append(Entry("b0", 2))
            assert toy.amounts() == {"b0": 2}

        toys.run(scenario)


class TestTheRole:
    def test_released_it_answers_for_nothing_and_what_is_on_its_way_arrives(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            log = toy.log_of(0)
            toy.publisher.hold = True
            on_its_way = toy.append(Entry("a0", 1))
            await toy.settle()
            toy.shards.release()
            assert sorted(toy.resigned) == [0, 1, 2]
            assert toy.shards.error_of("a0") == ErrorCode.coordinator_not_available
            too_late = log.append([Entry("b0", 1)])
            assert too_late.done()
            toy.publisher.release()
            await on_its_way
            assert await outcome_of(too_late) == ErrorCode.coordinator_not_available
            assert toy.publisher.submissions == [1]

        toys.run(scenario)

    def test_taken_up_again_only_the_log_counts(self, toys: Toys) -> None:
        async def scenario(toy: Toy, other: Toy) -> None:
            await toy.append(Entry("a0", 1))
            before = toy.log_of(0)
            toy.shards.release()
            await other.look()
            await other.append(Entry("a0", 2))
            await toy.look()
            assert before.state.amounts == {"a0": 1}  # nobody follows what nobody is answered from
            toy.loaded.clear()
            toy.shards.resume()
            assert toy.shards.error_of("a0") == ErrorCode.coordinator_load_in_progress
            await toy.settle()
            assert toy.amounts() == {"a0": 2}
            assert (before.status, sorted(toy.loaded)) == (LogStatus.CLOSED, [0, 1, 2])

        toys.run(scenario, brokers=2)

    def test_what_is_loaded_after_the_role_was_lost_is_nobodys(self, toys: Toys) -> None:
        async def fill(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))

        async def scenario(toy: Toy) -> None:
            toy.root.reads = asyncio.Event()
            await toy.open()
            toy.shards.release()
            toy.root.reads.set()
            await toy.settle()
            assert toy.loaded == [1, 2]
            toy.shards.resume()
            await toy.settle()
            assert sorted(toy.loaded) == [0, 1, 1, 2, 2]

        toys.run(fill)
        toys.run(scenario, opened=False)

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (LogStatus.LOADING, ErrorCode.coordinator_load_in_progress),
            (LogStatus.READY, ErrorCode.none),
            (LogStatus.FAILED, ErrorCode.coordinator_not_available),
            (LogStatus.RELEASED, ErrorCode.coordinator_not_available),
            (LogStatus.CLOSED, ErrorCode.coordinator_not_available),
        ],
    )
    def test_what_is_told_of_a_partition(self, toys: Toys, status: LogStatus, code: ErrorCode) -> None:
        async def scenario(toy: Toy) -> None:
            toy.log_of(0).status = status
            assert toy.shards.error_of("a0") == code
            assert toy.shards.error_of("a1") == ErrorCode.none
            toy.is_in_charge = False  # whatever the partition is like
            assert toy.shards.error_of("a0") == ErrorCode.not_coordinator

        toys.run(scenario)

    def test_nothing_goes_on_after_the_end(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            log = toy.log_of(0)
            toy.publisher.hold = True
            appended = toy.append(Entry("a0", 1))
            toy.shards.close()
            assert await outcome_of(appended) == ErrorCode.coordinator_not_available
            append_foreign(toy.log, TOPIC, 0, [(b"b0", b"1")])
            await toy.look()
            assert (list(toy.shards), log.state.history) == ([], [])
            assert toy.shards.error_of("a0") == ErrorCode.coordinator_not_available

        toys.run(scenario)


class TestTheTopic:
    def test_it_is_made_once_however_many_ask(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.shards.open()
            assert toy.shards.error_of("a0") == ErrorCode.none
            before = toy.log.image.commit
            errors = await asyncio.gather(*(toy.shards.ensure_topic() for _ in range(5)))
            assert errors == [ErrorCode.none] * 5
            assert toy.log.image.commit == before + 1
            topic = toy.log.image.topic(TOPIC)
            assert (len(topic.partitions), topic.configs) == (PARTITIONS, {"cleanup.policy": "compact"})
            assert toy.loaded == [0, 1, 2]

        toys.run(scenario, opened=False)

    def test_it_is_not_made_beside_another_brokers(self, toys: Toys) -> None:
        async def scenario(toy: Toy, other: Toy) -> None:
            other.shards.open()
            await toy.open()
            await toy.append(Entry("a0", 1))
            assert await other.shards.ensure_topic() == ErrorCode.none
            await other.settle()
            assert other.amounts() == {"a0": 1}

        toys.run(scenario, brokers=2, opened=False)

    def test_that_it_could_not_be_made_is_told_and_it_is_tried_again(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.shards.open()
            toy.publisher.failure = RetriableError("PUBLISH_CONTENDED", "busy", fix="try again")
            assert await toy.shards.ensure_topic() == ErrorCode.coordinator_not_available
            toy.publisher.failure = None
            assert await toy.shards.ensure_topic() == ErrorCode.none

        toys.run(scenario, opened=False)
