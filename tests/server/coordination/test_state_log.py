"""A state log without anybody's groups: loading, applying, appending, following."""

import asyncio
from typing import Any

import pytest

import sparklog
from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, StorageError
from sparklog.metadata import Action, Image, plan_advance_log_start
from sparklog_server.coordination import records, state_log
from sparklog_server.coordination import records as reading
from sparklog_server.coordination.internal_topic import LogStatus
from sparklog_server.coordination.state_log import outcome_of
from sparklog_server.protocol.apis import ErrorCode
from tests.foreign_records import append_foreign, damage
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys
from tests.support.removing import merge, remove_dead


def contended() -> RetriableError:
    return RetriableError("PUBLISH_CONTENDED", "busy", fix="try again")


def full() -> StorageError:
    return StorageError("STORAGE_FULL", "full", fix="make room")


def fenced() -> FencedError:
    return FencedError("BROKER_FENCED", "another broker serves the root", fix="stop")


class TestLoading:
    def test_an_empty_log_is_ready_at_once(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            assert toy.loaded == [0, 1, 2]
            assert [log.status for log in toy.shards] == [LogStatus.READY] * 3
            assert toy.amounts() == {}

        toys.run(scenario)

    def test_of_each_key_the_last_record_is_loaded(self, toys: Toys) -> None:
        async def fill(toy: Toy) -> None:
            await toy.append(Entry("a0", 1), Entry("b0", 2), Entry("c1", 3))  # c1 lies in partition 0, too
            await toy.append(Entry("a0", 4), Entry("b0", None))

        async def scenario(toy: Toy) -> None:
            assert toy.amounts() == {"a0": 4, "c1": 3}
            assert len(toy.log_of(0).state.history) == 3
            assert toy.log_of(0).next_offset == 5
            assert toy.loaded == [1, 2, 0]  # those without records at once

        toys.run(fill)
        toys.run(scenario)

    def test_nobody_is_told_before_everything_is_applied(self, toys: Toys) -> None:
        async def fill(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))

        async def scenario(toy: Toy) -> None:
            toy.root.reads = asyncio.Event()
            await toy.open()
            log = toy.log_of(0) if not toy.shards.error_of("x1") else None
            assert log is not None
            assert (log.status, toy.loaded) == (LogStatus.LOADING, [1, 2])
            with pytest.raises(RetriableError, match=f"{TOPIC}-0: its coordinator loads it"):
                await log.append([Entry("a0", 2)])
            toy.root.reads.set()
            await toy.settle()
            assert (log.status, toy.loaded) == (LogStatus.READY, [1, 2, 0])
            assert toy.amounts() == {"a0": 1}

        toys.run(fill)
        toys.run(scenario, opened=False)

    def test_loading_goes_on_where_storage_failed(self, toys: Toys, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(state_log, "RETRY_LOAD_MS", 0)
        replay, failures = (
            records.replay_together,
            [full(), contended()],
        )

        def fails_twice(*arguments: Any, **keywords: Any) -> object:
            if failures:
                raise failures.pop()
            return replay(*arguments, **keywords)

        async def fill(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))

        async def scenario(toy: Toy) -> None:
            monkeypatch.setattr(reading, "replay_together", fails_twice)
            await toy.open()
            assert not failures
            assert toy.amounts() == {"a0": 1}

        toys.run(fill)
        toys.run(scenario, opened=False)

    def test_what_was_merged_and_removed_is_loaded_from_where_it_is(
        self, toys: Toys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def fill(toy: Toy) -> None:
            for amount in range(5):
                toy.append_foreign(Entry("a0", amount))
                toy.log.close()  # a segment for each

        async def scenario(toy: Toy) -> None:
            with sparklog.open(toys.url) as other:
                merge(other)
                assert remove_dead(other)
            stale, follow = toy.log.image, toy.log.metadata.refresh
            monkeypatch.setattr(
                toy.log, "refresh", lambda *, force=False: follow(force=True) if force else stale
            )
            await toy.open()
            assert toy.amounts() == {"a0": 4}

        toys.run(fill)
        toys.run(scenario, opened=False)

    def test_a_damaged_partition_is_closed_and_no_other(self, toys: Toys) -> None:
        async def write(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))
            await toy.append(Entry("b1", 1))
            damage(toy.log, TOPIC, 0)

        async def scenario(toy: Toy) -> None:
            assert [log.status for log in toy.shards] == [LogStatus.FAILED, LogStatus.READY, LogStatus.READY]
            assert sorted(toy.loaded) == [1, 2]
            assert toy.amounts(1) == {"b1": 1}
            assert await toy.log_of(0).write([Entry("a0", 1)]) == ErrorCode.coordinator_not_available
            assert toy.publisher.submissions == []

        toys.run(write)
        toys.run(scenario)

    def test_records_that_say_nothing_are_passed_over_and_counted(self, toys: Toys) -> None:
        async def fill(toy: Toy) -> None:
            append_foreign(toy.log, TOPIC, 0, [(None, b"1"), (b"a0", b"2"), (None, None)])
            append_foreign(toy.log, TOPIC, 0, [(b"b0", b"a lot")])
            await toy.look()
            assert toy.metrics.state_records_skipped == {TOPIC: 3}

        async def scenario(toy: Toy) -> None:
            assert toy.amounts() == {"a0": 2}
            assert toy.metrics.state_records_skipped == {TOPIC: 3}

        toys.run(fill)
        toys.run(scenario)


class TestAppending:
    def test_what_is_appended_is_applied_when_it_is_durable(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.publisher.hold = True
            appended = toy.append(Entry("a0", 1))
            await toy.settle()
            assert (appended.done(), toy.amounts()) == (False, {})
            toy.publisher.release()
            await appended
            assert toy.amounts() == {"a0": 1}
            assert toy.log_of(0).next_offset == 1

        toys.run(scenario)

    def test_calls_of_one_turn_share_a_batch_in_their_order(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            entries = [Entry(f"{number % 5}0", number) for number in range(40)]
            await asyncio.gather(*(toy.append(entry) for entry in entries))
            assert toy.publisher.submissions == [40]
            assert toy.log_of(0).state.history == entries

        toys.run(scenario)

    def test_what_was_asked_for_later_is_appended_later(self, toys: Toys) -> None:
        """Whoever is awaited first, and while others are on their way."""

        async def scenario(toy: Toy) -> None:
            toy.publisher.hold = True
            first = toy.append(Entry("a0", 1))
            await toy.settle()
            second = toy.append(Entry("a0", 2))
            await toy.settle()
            toy.publisher.release()
            await second
            assert first.done()
            assert toy.log_of(0).state.history == [Entry("a0", 1), Entry("a0", 2)]

        toys.run(scenario)

    @pytest.mark.parametrize(
        ("error", "code"),
        [
            (contended(), ErrorCode.coordinator_not_available),
            (full(), ErrorCode.coordinator_not_available),
            (InvalidRequestError("APPEND_TOO_LARGE", "large", fix="less"), ErrorCode.unknown_server_error),
        ],
    )
    def test_what_could_not_be_appended_is_not_applied(
        self, toys: Toys, error: SparklogError, code: ErrorCode
    ) -> None:
        async def scenario(toy: Toy) -> None:
            await toy.append(Entry("a0", 1))
            toy.publisher.error = error
            assert await toy.log_of(0).write([Entry("a0", 2)]) == code
            assert toy.amounts() == {"a0": 1}
            toy.publisher.error = None
            assert await toy.log_of(0).write([Entry("b0", 3)]) == ErrorCode.none
            assert toy.amounts() == {"a0": 1, "b0": 3}

        toys.run(scenario)

    def test_a_fence_in_the_midst_takes_all_that_is_on_its_way(self, toys: Toys) -> None:
        async def scenario(toy: Toy, other: Toy) -> None:
            await toy.append(Entry("a0", 1))
            toy.publisher.hold = True
            appended = [toy.append(Entry("a0", 2)), toy.append(Entry("b0", 2))]
            await toy.settle()
            appended.append(toy.append(Entry("a0", 3)))
            await other.look()
            await other.append(Entry("c0", 4))  # whoever took the root over
            toy.publisher.failure = fenced()
            await toy.settle()
            toy.publisher.release()
            assert [await outcome_of(one) for one in appended] == [ErrorCode.not_coordinator] * 3
            assert toy.amounts() == {"a0": 1}
            await toy.look()
            assert toy.amounts() == other.amounts() == {"a0": 1, "c0": 4}

        toys.run(scenario, brokers=2)

    def test_what_arrived_although_its_answer_was_lost_is_followed(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.publisher.error = RetriableError("PUBLISH_UNRESOLVED", "no answer", fix="look")
            toy.publisher.loses_answers = True
            appended = toy.append(Entry("a0", 1))
            with pytest.raises(RetriableError, match="PUBLISH_UNRESOLVED"):
                await appended
            await toy.settle()
            assert toy.amounts() == {"a0": 1}

        toys.run(scenario)

    def test_a_record_that_is_too_large_harms_nobody_beside_it(
        self, toys: Toys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(records, "MAX_RECORD_BYTES", 200)

        async def scenario(toy: Toy) -> None:
            large, small = toy.append(Entry("a" * 199 + "0", 1)), toy.append(Entry("a" * 198 + "0", 1))
            with pytest.raises(InvalidRequestError, match=f"{TOPIC}-0: found a record of 201 bytes") as told:
                await large
            assert told.value.fix == "use shorter names"
            await small

        toys.run(scenario)

    def test_what_no_record_can_hold_is_refused_alone(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            refused = toy.log_of(0).append([Entry("a0", 1), Entry("no digit", 1)])
            accepted = toy.append(Entry("b0", 1))
            assert await outcome_of(refused) == ErrorCode.unknown_server_error
            await accepted
            assert toy.amounts() == {"b0": 1}

        toys.run(scenario)

    def test_nothing_to_write_is_no_append(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            assert await toy.log_of(0).write([]) == ErrorCode.none
            assert toy.publisher.submissions == []

        toys.run(scenario)

    def test_who_gave_up_before_the_batch_was_made_is_not_in_it(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.append(Entry("a0", 1)).cancel()
            await toy.append(Entry("b0", 2))
            assert toy.amounts() == {"b0": 2}

        toys.run(scenario)


def _removed(image: Image, topic_id: str, log_start_offset: int) -> Action:
    action = plan_advance_log_start(image, topic_id, 0, log_start_offset)
    assert action is not None
    return action


class TestFollowing:
    def test_what_others_append_is_applied(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.append_foreign(Entry("a0", 1), Entry("b0", 1))
            await toy.look()
            toy.append_foreign(Entry("a0", 2), Entry("b0", None))
            await toy.look()
            assert toy.amounts() == {"a0": 2}

        toys.run(scenario)

    def test_own_and_others_records_count_in_the_order_of_the_log(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.publisher.hold = True
            own = toy.append(Entry("a0", 2))
            await toy.settle()
            toy.append_foreign(Entry("a0", 1))
            toy.publisher.release()
            await own
            assert toy.amounts() == {"a0": 2}
            toy.append_foreign(Entry("a0", 3))
            await toy.look()
            assert toy.amounts() == {"a0": 3}

        toys.run(scenario)

    def test_an_own_record_waits_for_those_before_it(self, toys: Toys) -> None:
        async def scenario(toy: Toy) -> None:
            toy.root.reads = asyncio.Event()
            toy.append_foreign(Entry("a0", 1))
            toy.root.show()  # reading begins, and takes long
            own = toy.append(Entry("b0", 2))
            await toy.settle()
            assert (own.done(), toy.amounts()) == (False, {})
            toy.root.reads.set()
            await own
            assert toy.log_of(0).state.history == [Entry("a0", 1), Entry("b0", 2)]

        toys.run(scenario)

    def test_what_could_not_be_read_is_read_with_the_next_image(
        self, toys: Toys, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object, **__: object) -> object:
            raise full()

        async def scenario(toy: Toy) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(reading, "replay_together", fails)
                toy.append_foreign(Entry("a0", 1))
                await toy.look()
                assert toy.amounts() == {}
            toy.append_foreign(Entry("b0", 2))
            await toy.look()
            assert toy.amounts() == {"a0": 1, "b0": 2}

        toys.run(scenario)

    def test_records_that_were_removed_from_the_start_are_not_missed(self, toys: Toys) -> None:
        async def fill(toy: Toy) -> None:
            await toy.append(Entry("a0", 1), Entry("b0", 2))
            topic_id = toy.log.image.topic(TOPIC).topic_id
            toy.log.metadata.publish(lambda image: [_removed(image, topic_id, 1)])

        async def scenario(toy: Toy) -> None:
            assert toy.amounts() == {"b0": 2}

        toys.run(fill)
        toys.run(scenario)


def test_a_closed_log_applies_nothing_and_tells_whoever_waits(toys: Toys) -> None:
    async def scenario(toy: Toy) -> None:
        log = toy.log_of(0)
        toy.publisher.hold = True
        on_its_way = toy.append(Entry("a0", 1))
        await toy.settle()
        not_yet = toy.append(Entry("b0", 1))
        log.close()
        too_late = log.append([Entry("c0", 1)])
        toy.publisher.release()
        await toy.settle()
        assert on_its_way.done()
        for appended in (on_its_way, not_yet, too_late):
            with pytest.raises(RetriableError, match="COORDINATOR_CLOSED"):
                await appended
        await toy.look()
        assert (log.status, log.state.history) == (LogStatus.CLOSED, [])
        assert toy.log.log_end_offset(TOPIC, 0) == 1  # on its way is on its way

    toys.run(scenario)


def test_whoever_has_just_been_flushed_is_told_too(toys: Toys) -> None:
    """The batch is with the publisher; the task that waits for it has not begun when the log is closed."""

    async def scenario(toy: Toy) -> None:
        log = toy.log_of(0)
        appended = toy.append(Entry("a0", 1))
        asyncio.get_running_loop().call_soon(log.close)
        await toy.settle()
        assert toy.publisher.submissions == [1]
        assert appended.done()
        with pytest.raises(RetriableError, match="COORDINATOR_CLOSED"):
            await appended

    toys.run(scenario)
