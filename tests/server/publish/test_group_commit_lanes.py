"""Which segments a group commit goes to."""

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.log.writer import MAX_ISOLATED
from sparklog.storage import MemoryStore
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.group_commit import GroupCommitter
from tests.server.publish.batches import part
from tests.server.publish.test_group_commit import orders
from tests.server.publish.transactional_parts import leading, of
from tests.support.several_brokers import create_led
from tests.support.transactional_producer import TransactionalProducer


def test_internal_topics_have_segments_of_their_own(
    committer: GroupCommitter, log: SparkLog, registration: Registration
) -> None:
    create_led(log, registration, "__consumer_offsets")
    internal = log.image.topic("__consumer_offsets").topic_id
    for _ in range(2):
        committer.write([orders(log), part(topic_id=internal, topic="__consumer_offsets"), orders(log, 1)])
    found = {
        topic: {extent.segment for state in log.image.topic(topic).partitions for extent in state.extents}
        for topic in ("orders", "__consumer_offsets")
    }
    assert [len(one) for one in found.values()] == [1, 1]
    assert found["orders"].isdisjoint(found["__consumer_offsets"])


# --- isolated topics ---------------------------------------------------------------------------------

ISOLATED = {"sparklog.segment.isolation": "true"}


def segments(log: SparkLog, topic: str) -> set[str]:
    return {extent.segment for state in log.image.topic(topic).partitions for extent in state.extents}


def test_isolated_topics_have_directories_of_their_own(
    committer: GroupCommitter, log: SparkLog, registration: Registration
) -> None:
    topics = [f"isolated-{number}" for number in range(MAX_ISOLATED + 2)]
    for topic in topics:
        create_led(log, registration, topic, 1, ISOLATED)
    parts = [part(topic_id=log.image.topic(topic).topic_id, topic=topic) for topic in topics]
    for _ in range(2):
        outcomes = committer.write([*parts, orders(log)])
        assert [outcome.error for outcome in outcomes] == [None] * (len(topics) + 1)
    for topic in topics:
        assert {name.startswith(f"isolated/{topic}/segments/") for name in segments(log, topic)} == {True}
        assert log.log_end_offset(topic, 0) == 4
    assert all(name.startswith("segments/") for name in segments(log, "orders"))


def test_a_transaction_stages_in_the_directory_of_its_topic(
    log: SparkLog, store: MemoryStore, clock: ManualClock
) -> None:
    log.alter_topic("orders", ISOLATED)
    committer = leading(log, store, clock)
    producer = TransactionalProducer(log).begin()
    producer.add(0)
    (outcome,) = committer.write([of(producer)])
    assert outcome.error is None
    (transaction,) = log.image.transactions.by_id.values()
    (staged,) = transaction.staged.values()
    assert {extent.segment.startswith("isolated/orders/segments/") for extent in staged} == {True}
    assert segments(log, "orders") == set()
    producer.end()
    assert {name.startswith("isolated/orders/segments/") for name in segments(log, "orders")} == {True}
