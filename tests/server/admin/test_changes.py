"""Changes whose plan never ran: the time was up before its turn, or the broker is stopping."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from kio.schema.errors import ErrorCode

import sparklog
from sparklog.errors import FencedError, StorageError
from sparklog.metadata import Action, Image, Plan, PublishResult
from sparklog_server.admin.changes import Changes, Part, RefusedError
from sparklog_server.publish.publisher import Publisher
from sparklog_server.root.live_root import LiveRoot
from tests.server.api.topic_requests import more_partitions as grown
from tests.server.api.topic_requests import topic
from tests.support.running_broker import RunningBroker
from tests.support.wire_client import WireClient


def created(asker: WireClient, **fields: Any) -> str:
    answer = asker.ask(19, 7, topics=[topic("new", 1)], **{"timeout": 1, "validate_only": False, **fields})
    return str(answer.topics[0].error_code.name)


def partitions_added(asker: WireClient, **fields: Any) -> str:
    answer = asker.ask(37, 3, topics=[grown("t", 5)], **{"timeout": 1, "validate_only": False, **fields})
    (one,) = answer.results
    return str(one.error_code.name)


def deleted(asker: WireClient) -> str:
    answer = asker.ask(20, 5, topic_names=("t",), timeout=1)
    return str(answer.responses[0].error_code.name)


def records_deleted(asker: WireClient, timeout_ms: int = 30_000) -> tuple[str, int]:
    one = {"_": "DeleteRecordsPartition", "partition_index": 0, "offset": -1}
    named = {"_": "DeleteRecordsTopic", "name": "t", "partitions": [one]}
    answer = asker.ask(21, 2, topics=[named], timeout=timeout_ms).topics[0].partitions[0]
    return answer.error_code.name, answer.low_watermark


def altered(asker: WireClient, key: int) -> str:
    more = {"config_operation": 0} if key == 44 else {}
    kind = "AlterableConfig"
    one = {"_": kind, "name": "retention.ms", "value": "1000", **more}
    resource = {"_": "AlterConfigsResource", "resource_type": 2, "resource_name": "t", "configs": [one]}
    answer = asker.ask(key, 1, resources=[resource], validate_only=False)
    return str(answer.responses[0].error_code.name)


@pytest.fixture
def log(log: sparklog.SparkLog) -> sparklog.SparkLog:
    log.create_topic("t", 2)
    return log


@contextlib.contextmanager
def busy(running: RunningBroker) -> Iterator[None]:
    """The publisher works on something else, for as long as the context lasts."""
    began, go_on = threading.Event(), threading.Event()

    def plan(_image: Image) -> list[Action]:
        began.set()
        assert go_on.wait(30)
        return []

    running.call_soon(running.broker.publisher.submit_plan, plan)
    assert began.wait(30)
    try:
        yield
    finally:
        go_on.set()


@pytest.mark.parametrize("ask", [created, partitions_added, deleted])
def test_a_change_whose_turn_does_not_come_in_time_is_not_made(
    running_broker: RunningBroker, asker: WireClient, log: sparklog.SparkLog, ask: Callable[[WireClient], str]
) -> None:
    before = log.refresh().commit
    with busy(running_broker):
        assert ask(asker) == "request_timed_out"

    async def publish_nothing() -> None:
        await running_broker.broker.publisher.submit_plan(lambda _: [])

    running_broker.call(publish_nothing())  # it would have come before
    assert log.refresh().commit == before


def test_a_change_that_has_begun_may_still_happen(
    running_broker: RunningBroker, log: sparklog.SparkLog
) -> None:
    def refuse(_image: Image) -> Action:
        raise RefusedError(ErrorCode.invalid_request, "no")

    class Slow:
        """Its storage takes the plan's actions, and does not answer."""

        def submit_plan(self, plan: Plan) -> "asyncio.Future[PublishResult]":
            assert plan(log.image) == []
            return asyncio.get_running_loop().create_future()

    async def main() -> None:
        parts: dict[str, Part] = {"fine": lambda _: None, "refused": refuse}
        done = await Changes(cast("LiveRoot", None), cast("Publisher", Slow())).make(parts, timeout_ms=1)
        assert done["fine"].code is ErrorCode.request_timed_out
        assert "may still be done" in (done["fine"].message or "")
        assert done["refused"].code is ErrorCode.invalid_request

    asyncio.run(main())


@pytest.mark.parametrize("timeout_ms", [0, 1])
def test_records_are_deleted_however_short_the_time(
    asker: WireClient,
    log: sparklog.SparkLog,
    running_broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    timeout_ms: int,
) -> None:
    """The time-out of the request is for replicas to follow; there are none."""
    submit = running_broker.broker.publisher.submit_plan

    async def when_the_time_is_up(plan: Plan) -> PublishResult:
        await asyncio.sleep(0.01)
        return await submit(plan)

    monkeypatch.setattr(
        running_broker.broker.publisher,
        "submit_plan",
        lambda plan: asyncio.ensure_future(when_the_time_is_up(plan)),
    )
    log.append("t", pa.table({"value": [b"x"] * 5}), partition=0)
    assert records_deleted(asker, timeout_ms) == ("none", 5)
    assert log.refresh().topics["t"].partitions[0].log_start_offset == 5


@pytest.mark.parametrize(
    "ask",
    [
        created,
        partitions_added,
        deleted,
        lambda asker: records_deleted(asker)[0],
        lambda asker: altered(asker, 33),
        lambda asker: altered(asker, 44),
    ],
)
def test_a_publisher_that_refuses_is_told_of_for_each_part(
    running_broker: RunningBroker, asker: WireClient, log: sparklog.SparkLog, ask: Callable[[WireClient], str]
) -> None:
    running_broker.broker.publisher.is_stopping = True  # as while the broker stops
    try:
        assert ask(asker) == "request_timed_out"  # retriable: the next broker does it
    finally:
        running_broker.broker.publisher.is_stopping = False


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (created, "not_controller"),
        (partitions_added, "not_controller"),
        (deleted, "not_controller"),
        (lambda asker: records_deleted(asker)[0], "not_leader_or_follower"),
        (lambda asker: altered(asker, 33), "not_controller"),
        (lambda asker: altered(asker, 44), "not_controller"),
    ],
)
def test_a_fenced_broker_names_what_makes_clients_ask_another_one(
    running_broker: RunningBroker,
    asker: WireClient,
    log: sparklog.SparkLog,
    ask: Callable[[WireClient], str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def submit_plan(_plan: Plan) -> "asyncio.Future[PublishResult]":
        future: asyncio.Future[PublishResult] = asyncio.get_running_loop().create_future()
        future.set_exception(FencedError("BROKER_FENCED", "found no registration", fix="join again"))
        return future

    monkeypatch.setattr(running_broker.broker.publisher, "submit_plan", submit_plan)
    assert ask(asker) == expected


@pytest.mark.parametrize("ask", [created, partitions_added])
def test_validating_without_storage(
    running_broker: RunningBroker,
    asker: WireClient,
    log: sparklog.SparkLog,
    ask: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refresh(*, force: bool = False) -> None:
        del force
        raise StorageError("STORE_UNAVAILABLE", "found no storage", fix="wait for it")

    monkeypatch.setattr(running_broker.broker.root.log, "refresh", refresh)
    assert ask(asker, validate_only=True) == "kafka_storage_error"
