"""ShareGroupDescribe: state, epochs and members of a share group."""

from tests.server.api.share_requests import SHARE_SETTINGS, beat, describe
from tests.support.wire_client import WireClient

BROKER_SETTINGS = SHARE_SETTINGS
BROKER_TOPICS = {"orders": 2}


def test_described_with_members(asker: WireClient) -> None:
    beat(asker)
    found = describe(asker)
    assert (found.group_state, found.assignor_name, found.group_epoch) == ("Stable", "simple", 2)
    (member,) = found.members
    assert (member.member_id, member.member_epoch, list(member.subscribed_topic_names)) == (
        "m-1",
        2,
        ["orders"],
    )
    ((topic,),) = [member.assignment.topic_partitions]
    assert (topic.topic_name, list(topic.partitions)) == ("orders", [0, 1])


def test_an_unknown_group_is_not_found(asker: WireClient) -> None:
    assert describe(asker, "nobody").error_code.name == "group_id_not_found"
