"""Topics and settings: what can be planned, what a plan does to the image, and what is refused."""

import msgspec
import pytest

from sparklog.errors import (
    InvalidRequestError,
    UnknownTopicError,
)
from sparklog.metadata import (
    MAX_PARTITIONS_KEY,
    AddPartitions,
    AppendExtents,
    CreateTopic,
    DeleteTopic,
    MetadataLog,
    SetConfigs,
    new_id,
    plan_add_partitions,
    plan_append,
    plan_create_topic,
    plan_delete_topic,
    plan_set_configs,
)
from sparklog.metadata.model import image as image_module
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.image import collision_key
from tests.metadata.applying import Append, Create, Draft, applied, some


def test_create_topic(log: MetadataLog, create: Create) -> None:
    topic = create(log, partitions=3)
    assert [state.partition for state in topic.partitions] == [0, 1, 2]
    assert all(state.log_start_offset == state.log_end_offset == 0 for state in topic.partitions)
    assert log.image.topic_by_id[topic.topic_id] is log.image.topics["orders"] is topic


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../a", "a b", "a\0", "ä", "x" * 250, "a\n", "a:b", "a\\b"]
)
def test_illegal_topic_names(log: MetadataLog, topic_id: str, name: str) -> None:
    with pytest.raises(InvalidRequestError, match="topic name") as raised:
        plan_create_topic(log.image, name, 1, topic_id=topic_id)
    assert raised.value.code == "INVALID_TOPIC_NAME"
    with pytest.raises(ActionRefusedError, match="topic name"):
        applied(log.image, CreateTopic(topic_id=topic_id, name=name, partitions=1))


@pytest.mark.parametrize("name", ["a", "a..", "_", "__consumer_offsets", "x" * 249, "A.b_c-9"])
def test_legal_topic_names(log: MetadataLog, topic_id: str, name: str) -> None:
    assert name in applied(log.image, plan_create_topic(log.image, name, 1, topic_id=topic_id)).topics


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("-rf", "it begins with '-'"),
        (".tmp", "it begins with '.'"),
        ("...", "it begins with '.'"),
        ("__cluster_metadata", "it is internal"),
        ("__transaction_state", "it is internal"),
        ("__share_group_state", "it is internal"),
    ],
)
def test_names_that_no_new_topic_has(log: MetadataLog, topic_id: str, name: str, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why) as raised:
        plan_create_topic(log.image, name, 1, topic_id=topic_id)
    assert raised.value.code == "INVALID_TOPIC_NAME"
    # One that there is stays: a log that has it is not damaged.
    log.publish(lambda _: [CreateTopic(topic_id=topic_id, name=name, partitions=1)])
    assert name in log.image.topics


def test_names_that_collide_in_metrics(log: MetadataLog, create: Create) -> None:
    create(log, "a.b_c")
    with pytest.raises(InvalidRequestError, match=r"collides with 'a.b_c'"):
        plan_create_topic(log.image, "a_b.c", 1, topic_id=new_id())


def test_the_names_in_use_are_gone_through_once(
    log: MetadataLog, create: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request may make thousands of topics, of roots that have thousands."""
    create(log, "a.b_c")
    calls: list[str] = []

    def counted(name: str) -> str:
        calls.append(name)
        return collision_key(name)

    monkeypatch.setattr(image_module, "collision_key", counted)
    for number in range(100):
        plan_create_topic(log.image, f"new.{number}", 1, topic_id=new_id())
    assert calls.count("a.b_c") == 1
    with pytest.raises(InvalidRequestError, match="collides"):
        plan_create_topic(log.image, "a.b.c", 1, topic_id=new_id())
    create(log, "x.y", topic_id=new_id())  # another image: its names are other ones
    with pytest.raises(InvalidRequestError, match=r"collides with 'x.y'"):
        plan_create_topic(log.image, "x_y", 1, topic_id=new_id())


def test_a_root_has_a_bound_on_partitions(log: MetadataLog, create: Create) -> None:
    """Everybody's plan, the embedded client's too; a root that has more is read all the same."""
    log.publish(lambda image: some(plan_set_configs(image, None, {MAX_PARTITIONS_KEY: "10"})))
    create(log, "a", partitions=6)
    for plan in (
        lambda: plan_create_topic(log.image, "b", 5, topic_id=new_id()),
        lambda: plan_add_partitions(log.image, "a", 11),
    ):
        with pytest.raises(InvalidRequestError, match="to be added, expected at most 10 in all") as caught:
            plan()
        assert caught.value.code == "TOO_MANY_PARTITIONS"
    image = applied(log.image, CreateTopic(topic_id=new_id(), name="b", partitions=100))
    assert len(image.topics["b"].partitions) == 100
    create(log, "b", partitions=4, topic_id=new_id())
    assert plan_add_partitions(log.image, "b", 4) is None
    log.publish(lambda image: some(plan_set_configs(image, None, {MAX_PARTITIONS_KEY: "11"})))
    assert plan_add_partitions(log.image, "a", 7) is not None


def test_topic_exists(log: MetadataLog, create: Create) -> None:
    create(log)
    with pytest.raises(InvalidRequestError) as raised:
        create(log, topic_id=new_id())
    assert raised.value.code == "TOPIC_EXISTS"
    with pytest.raises(ActionRefusedError, match="is taken"):
        applied(log.image, CreateTopic(topic_id=new_id(), name="orders", partitions=1))


@pytest.mark.parametrize("partitions", [0, -1, 100_001, 1 << 40])
def test_partition_counts(log: MetadataLog, topic_id: str, partitions: int) -> None:
    with pytest.raises(InvalidRequestError, match="expected 1 to 100000"):
        plan_create_topic(log.image, "a", partitions, topic_id=topic_id)
    with pytest.raises(ActionRefusedError, match="expected 1 to 100000"):
        applied(log.image, CreateTopic(topic_id=topic_id, name="a", partitions=partitions))


@pytest.mark.parametrize("bad", ["", "short", "x" * 23, "../../../../../../../x", "AAAAAAAAAAAAAAAAAAAAA="])
def test_topic_ids(log: MetadataLog, bad: str) -> None:
    with pytest.raises(ActionRefusedError, match="topic id"):
        applied(log.image, CreateTopic(topic_id=bad, name="a", partitions=1))


def test_deleted_topic_is_gone_and_its_namesake_is_another(
    log: MetadataLog, create: Create, append: Append, draft: Draft
) -> None:
    old = create(log)
    append(log, old)
    log.publish(lambda image: [plan_delete_topic(image, "orders")])
    assert not log.image.topics
    assert not log.image.topic_by_id
    with pytest.raises(UnknownTopicError):
        plan_delete_topic(log.image, "orders")
    new = create(log, topic_id=new_id())
    with pytest.raises(UnknownTopicError, match="deleted and created again"):
        plan_append(log.image, [draft(old)])
    assert append(log, new).partition("orders", 0).log_end_offset == 10


def test_topics_can_be_deleted_in_the_commit_that_made_them(
    log: MetadataLog, topic_id: str, draft: Draft
) -> None:
    create = CreateTopic(topic_id=topic_id, name="a", partitions=1)
    append = plan_append(applied(log.image, create), [draft(topic_id)])
    image = applied(log.image, create, append, DeleteTopic(topic_id=topic_id))
    assert not image.topics
    image = applied(
        log.image, create, append, AddPartitions(topic_id=topic_id, partitions=2), append_after(append)
    )
    assert [state.log_end_offset for state in image.topic("a").partitions] == [20, 0]


def append_after(action: AppendExtents) -> AppendExtents:
    extents = tuple(
        msgspec.structs.replace(extent, base_offset=extent.end_offset, offset_delta=extent.end_offset)
        for extent in action.extents
    )
    return AppendExtents(extents=extents)


def test_partitions_only_grow(log: MetadataLog, create: Create, append: Append) -> None:
    topic = create(log, partitions=2)
    append(log, topic, partition=1)
    assert plan_add_partitions(log.image, "orders", 2) is None
    for total in (1, 0):
        with pytest.raises(InvalidRequestError):
            plan_add_partitions(log.image, "orders", total)
    image = applied(log.image, plan_add_partitions(log.image, "orders", 5))
    assert [state.log_end_offset for state in image.topic("orders").partitions] == [0, 10, 0, 0, 0]
    for total in (1, 2, 0):
        with pytest.raises(ActionRefusedError):
            applied(log.image, AddPartitions(topic_id=topic.topic_id, partitions=total))


def test_configs_of_topic_and_root(log: MetadataLog, create: Create) -> None:
    create(log)
    log.publish(lambda image: some(plan_set_configs(image, "orders", {"a": "1", "b": "2"})))
    log.publish(lambda image: some(plan_set_configs(image, None, {"a": "root"})))
    log.publish(lambda image: some(plan_set_configs(image, "orders", {"a": None, "c": "3"})))
    assert log.image.topic("orders").configs == {"b": "2", "c": "3"}
    assert log.image.configs == {"a": "root"}
    assert plan_set_configs(log.image, "orders", {"a": None, "b": "2"}) is None
    log.publish(lambda image: [SetConfigs(configs={"a": None, "never": None})])
    assert log.image.configs == {}


@pytest.mark.parametrize("configs", [{"": "x"}, {"a": 5}, {5: "a"}])
def test_malformed_configs(log: MetadataLog, create: Create, configs: dict[str, str]) -> None:
    create(log)
    with pytest.raises(InvalidRequestError):
        plan_set_configs(log.image, "orders", configs)
    with pytest.raises(InvalidRequestError):
        plan_create_topic(log.image, "other", 1, topic_id=new_id(), configs=configs)


def test_lookups_say_what_is_missing(log: MetadataLog, create: Create) -> None:
    create(log, partitions=2)
    for use, found in (
        (lambda: log.image.topic("nope"), "'nope': not found"),
        (lambda: log.image.partition("orders", 2), "no partition 2, it has 2"),
        (lambda: log.image.partition("orders", -1), "no partition -1"),
    ):
        with pytest.raises(UnknownTopicError, match=found):
            use()
