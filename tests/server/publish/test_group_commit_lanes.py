"""Which segments a group commit goes to."""

from sparklog.client import SparkLog
from sparklog_server.cluster.membership import Registration
from sparklog_server.publish.group_commit import GroupCommitter
from tests.server.publish.batches import part
from tests.server.publish.test_group_commit import orders
from tests.support.several_brokers import create_led


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
