"""ConsumerGroupDescribe: epochs, members, target and current assignments."""

import sparklog
from tests.server.api.group_requests import GROUP_SETTINGS, GROUP_TOPICS
from tests.server.api.test_consumer_group_heartbeat import beat, orders_id
from tests.support.wire_client import WireClient

CONSUMER_DESCRIBE = 69
BROKER_SETTINGS = GROUP_SETTINGS
BROKER_TOPICS = GROUP_TOPICS


def test_a_group_is_described(asker: WireClient, log: sparklog.SparkLog) -> None:
    beat(asker, instance_id="i", rack_id="r")
    beat(asker, "n", subscribed_topic_regex="returns.*", server_assignor="range")
    (group,) = asker.ask(CONSUMER_DESCRIBE, 1, group_ids=["g"], include_authorized_operations=True).groups
    assert (group.error_code.name, group.group_state, group.assignor_name) == ("none", "Assigning", "range")
    assert (group.group_epoch, group.assignment_epoch) == (2, 1)
    assert group.authorized_operations > 0
    first, second = group.members
    assert (first.member_id, first.instance_id, first.rack_id, first.member_epoch) == ("m", "i", "r", 1)
    assert (first.client_id, first.client_host, first.member_type) == ("test", "/127.0.0.1", 1)
    assert first.subscribed_topic_names == ("orders",)
    assert second.subscribed_topic_regex == "returns.*"
    for assignment in (first.assignment, first.target_assignment):
        (topic,) = assignment.topic_partitions
        assert (topic.topic_id, topic.topic_name, topic.partitions) == (orders_id(log), "orders", (0, 1))

    unknown, classic = asker.ask(CONSUMER_DESCRIBE, 0, group_ids=["x", "y"]).groups
    assert (unknown.error_code.name, classic.error_code.name) == ("group_id_not_found",) * 2
