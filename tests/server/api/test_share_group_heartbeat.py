"""ShareGroupHeartbeat, and share groups among all groups."""

import pytest

import sparklog
from tests.server.api.group_requests import DELETE, LIST, commit, join, sync
from tests.server.api.share_requests import SHARE_SETTINGS, Worker, beat, describe
from tests.support.broker_process import until
from tests.support.wire_client import WireClient

BROKER_SETTINGS = SHARE_SETTINGS | {
    "group.share.max.size": "2",
    "group.share.session.timeout.ms": "60000",
    "group.initial.rebalance.delay.ms": "0",
    "sparklog.group.max.bytes": str(1 << 20),
}
BROKER_TOPICS = {"orders": 2, "returns": 1}


def listed(asker: WireClient, **filters: object) -> list[tuple[str, str, str]]:
    answer = asker.ask(LIST, 5, **filters)
    return sorted((one.group_id, one.group_type, one.group_state) for one in answer.groups)


def test_members_join_learn_and_leave(asker: WireClient) -> None:
    first = beat(asker)
    assert (first.error_code.name, first.member_epoch, first.member_id) == ("none", 2, "m-1")
    ((topic,),) = [first.assignment.topic_partitions]
    assert list(topic.partitions) == [0, 1]
    second = beat(asker, member="m-2")
    assert [list(one.partitions) for one in second.assignment.topic_partitions] == [[1]]
    assert beat(asker, first.member_epoch, topics=None).member_epoch == second.member_epoch
    assert beat(asker, second.member_epoch, topics=None).assignment is None
    assert beat(asker, -1, topics=None).member_epoch == -1
    assert beat(asker, second.member_epoch, topics=None).error_code.name == "unknown_member_id"


def test_what_is_refused(asker: WireClient) -> None:
    assert beat(asker, group="").error_code.name == "invalid_group_id"
    assert beat(asker, member="").error_code.name == "invalid_request"
    assert beat(asker, topics=None).error_code.name == "invalid_request"
    assert beat(asker, 3, topics=None).error_code.name == "unknown_member_id"
    for number in (1, 2):
        assert beat(asker, member=f"m-{number}").error_code.name == "none"
    assert beat(asker, member="m-3").error_code.name == "group_max_size_reached"


def test_hundreds_of_members_are_refused(asker: WireClient) -> None:
    names = [beat(asker, member=f"m-{number}").error_code.name for number in range(300)]
    assert names == ["none"] * 2 + ["group_max_size_reached"] * 298


def test_long_names_of_topics_are_refused_before_they_are_kept(asker: WireClient) -> None:
    names = [f"{number:03}" + "x" * 20_000 for number in range(60)]
    assert beat(asker, topics=names).error_code.name == "group_max_size_reached"
    assert beat(asker).error_code.name == "none"


def test_a_consumer_group_is_no_share_group(asker: WireClient) -> None:
    join(asker, group="workers")
    assert beat(asker).error_code.name == "group_id_not_found"


def test_a_share_group_is_no_consumer_group(asker: WireClient) -> None:
    beat(asker)
    assert join(asker, group="workers").error_code.name == "inconsistent_group_protocol"
    joins = {"member_id": "m", "member_epoch": 0, "rebalance_timeout": 60_000, "topic_partitions": []}
    answer = asker.ask(68, 1, group_id="workers", subscribed_topic_names=("orders",), **joins)
    assert (answer.error_code.name, answer.member_epoch) == ("group_id_not_found", 0)
    assert commit(asker, {("orders", 0): 5}, group_id="workers") == {("orders", 0): "group_id_not_found"}
    assert [one[1] for one in listed(asker)] == ["share"]


def test_a_fetch_of_a_share_group_keeps_no_members_of_a_consumer_group_out(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    joined = join(asker, group="workers")
    assert sync(asker, joined, group="workers").error_code.name == "none"
    worker = Worker(asker, log.image.topic("orders").topic_id)
    assert worker.fetch() == []
    log.refresh(force=True)
    assert list(log.image.shares) == ["workers"]
    assert join(asker, member_id=joined.member_id, group="workers").error_code.name == "none"
    assert beat(asker).error_code.name == "group_id_not_found"


def test_offsets_of_its_name_keep_no_members_of_a_share_group_out(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    assert commit(asker, {("orders", 0): 5}, group_id="workers") == {("orders", 0): "none"}
    assert beat(asker).error_code.name == "group_id_not_found"
    worker = Worker(asker, log.image.topic("orders").topic_id)
    assert worker.fetch() == []
    assert beat(asker).error_code.name == "none"


def test_listed_and_deleted(asker: WireClient, log: sparklog.SparkLog) -> None:
    beat(asker)
    worker = Worker(asker, log.image.topic("orders").topic_id)
    worker.fetch()
    join(asker, group="classic")
    assert [one for one in listed(asker) if one[0] == "workers"] == [("workers", "share", "Stable")]
    assert listed(asker, types_filter=["share"]) == [("workers", "share", "Stable")]
    assert listed(asker, types_filter=["share"], states_filter=["Empty"]) == []
    assert asker.ask(DELETE, 2, groups_names=["workers"]).results[0].error_code.name == "non_empty_group"
    beat(asker, -1, topics=None)
    assert listed(asker, types_filter=["share"]) == [("workers", "share", "Empty")]
    assert asker.ask(DELETE, 2, groups_names=["workers"]).results[0].error_code.name == "none"
    assert listed(asker, types_filter=["share"]) == []
    log.refresh(force=True)
    assert log.image.shares == {}
    assert describe(asker).error_code.name == "group_id_not_found"


@pytest.mark.slow
@pytest.mark.parametrize("group", ["silent"])
def test_a_silent_member_is_removed(asker: WireClient, group: str) -> None:
    asker.ask(
        44,
        1,
        resources=[
            {
                "_": "AlterConfigsResource",
                "resource_type": 32,
                "resource_name": group,
                "configs": [
                    {
                        "_": "AlterableConfig",
                        "name": "share.session.timeout.ms",
                        "config_operation": 0,
                        "value": "1",
                    }
                ],
            }
        ],
        validate_only=False,
    )
    beat(asker, group=group)
    until(lambda: describe(asker, group).error_code.name == "group_id_not_found", what="the member is gone")
