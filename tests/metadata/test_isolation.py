"""Isolated topics in the metadata log: the feature they need, and whose extents their segments may hold."""

from collections.abc import Sequence

import pytest

from sparklog.errors import InvalidRequestError, UnsupportedVersionError
from sparklog.metadata import (
    ISOLATION_KEY,
    Action,
    CreateTopic,
    DraftExtent,
    Image,
    MetadataLog,
    RequireFeatures,
    SetConfigs,
    SharedPlan,
    StageExtents,
    born_of,
    is_isolated,
    isolated_prefix,
    new_id,
    plan_append,
    plan_begin_producer,
    plan_create_topic,
    replacement,
    sequenced,
)
from sparklog.metadata.model import settings
from sparklog.metadata.model.isolation import plan_isolation
from sparklog.metadata.model.retired import with_retired
from sparklog.storage import MemoryStore
from sparklog.storage.base import StoreTraits
from tests.metadata.opened_logs import opened

ORDERS, OTHER = new_id(), new_id()
ISOLATED = {ISOLATION_KEY: "true"}
NAME = f"segments/{'a' * 32}/00000000.1.log"
FEATURES = frozenset({"isolated-topics"})


@pytest.fixture
def log() -> MetadataLog:
    """Of two topics, `orders` and `orders-eu`; neither is isolated yet."""
    log = opened(MemoryStore("isolation"))
    for topic_id, name in ((ORDERS, "orders"), (OTHER, "orders-eu")):
        publish(log, CreateTopic(topic_id=topic_id, name=name, partitions=1))
    return log


def publish(log: MetadataLog, *actions: Action) -> None:
    log.publish(lambda _: actions)


def needed(log: MetadataLog) -> frozenset[str]:
    assert log.image.reader_features == log.image.writer_features
    return log.image.reader_features


def draft(segment: str, topic_id: str = ORDERS, producer_id: int = -1) -> DraftExtent:
    producer = {} if producer_id < 0 else {"producer_epoch": 0, "base_sequence": 0}
    return DraftExtent(
        topic_id=topic_id,
        partition=0,
        segment=segment,
        position=0,
        size=100,
        record_count=1,
        max_timestamp_ms=1,
        producer_id=producer_id,
        **producer,
    )


def test_the_slash_ends_the_name() -> None:
    assert isolated_prefix("orders") == "isolated/orders/"
    assert not isolated_prefix("orders-eu").startswith(isolated_prefix("orders"))
    assert is_isolated(isolated_prefix("orders") + NAME)
    assert not is_isolated(NAME)
    assert not is_isolated(f"isolated-0/{0:020d}.1-{'A' * 22}.log")  # of a topic with this name


@pytest.mark.parametrize(
    ("name", "born"),
    [
        (f"segments/{'a' * 32}/00000007.41.log", 41),
        (f"orders-0/{7:020d}.41-{'A' * 22}.log", 41),
        ("segments/w/00000007.log", -1),
        (f"{'b' * 32}/00000007.41.log", -1),
    ],
)
def test_the_version_in_the_name(name: str, born: int) -> None:
    assert born_of(name) == born_of(f"isolated/orders/{name}") == born
    assert born_of(f"isolated/a/b/{name}") == born_of(f"isolated/{name}x") == -1


# --- the feature -------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["true", "TRUE", " true "])
def test_a_root_needs_the_feature_from_the_first_isolated_topic_on(log: MetadataLog, value: str) -> None:
    publish(log, SetConfigs(topic_id=ORDERS, configs={"retention.ms": "5", ISOLATION_KEY: "false"}))
    publish(log, SetConfigs(topic_id=ORDERS, configs={ISOLATION_KEY: None}))
    assert needed(log) == frozenset()
    publish(log, SetConfigs(topic_id=ORDERS, configs={ISOLATION_KEY: value}))
    assert needed(log) == FEATURES
    publish(log, SetConfigs(topic_id=ORDERS, configs={ISOLATION_KEY: "false"}))
    assert needed(log) == FEATURES


@pytest.mark.parametrize(
    "action",
    [
        CreateTopic(topic_id=new_id(), name="new", partitions=1, configs=ISOLATED),
        SetConfigs(configs=dict(ISOLATED)),
    ],
    ids=["a new topic", "the root"],
)
def test_whatever_isolates_a_topic_needs_the_feature(log: MetadataLog, action: Action) -> None:
    publish(log, action)
    assert needed(log) == FEATURES
    assert plan_isolation(log.image, [action]) == []


def test_an_extent_in_such_a_segment_needs_the_feature(log: MetadataLog) -> None:
    """The topic was planned as an isolated one, and another writer has created it without the setting."""
    log.publish(lambda image: [plan_append(image, [draft(NAME)])])
    assert needed(log) == frozenset()
    log.publish(lambda image: [plan_append(image, [draft(isolated_prefix("orders") + NAME)])])
    assert needed(log) == FEATURES


@pytest.mark.parametrize("known", [frozenset(), frozenset({"acls", "quotas"})])
def test_software_that_does_not_know_it_does_not_open_the_root(
    monkeypatch: pytest.MonkeyPatch, known: frozenset[str]
) -> None:
    store = MemoryStore("isolation")
    publish(opened(store), CreateTopic(topic_id=ORDERS, name="orders", partitions=1, configs=ISOLATED))
    monkeypatch.setattr(settings, "READER_FEATURES", known)
    with pytest.raises(UnsupportedVersionError, match="needs the features isolated-topics"):
        opened(store)


def test_the_first_use_is_not_left_to_other_publishers() -> None:
    """One that does not know the feature would publish the request without requiring it."""
    traits = StoreTraits(is_remote=True, appends_after_sync=False)
    log = opened(MemoryStore("isolation", traits=traits))
    log.combiner.contention.note()  # others wait: a request is posted
    log.publish(
        lambda image: [plan_create_topic(image, "t", 1, topic_id=ORDERS, configs=ISOLATED)],
        shared=SharedPlan(payload=lambda: pytest.fail("it was posted"), interpret=lambda _: lambda _: []),
    )
    assert needed(log) == FEATURES


# --- whose extents -----------------------------------------------------------------------------------


def staged(image: Image, extents: Sequence[DraftExtent]) -> list[Action]:
    return [
        *plan_begin_producer(image, "app", timeout_ms=60_000, now_ms=1).actions,
        StageExtents(extents=tuple(extents), opens_ms=1),
    ]


@pytest.mark.parametrize("how", ["append", "stage", "replace"])
@pytest.mark.parametrize("other", ["orders-eu", "order", "orders.eu", "Orders"])
def test_no_other_topic_has_an_extent_in_the_directory(log: MetadataLog, how: str, other: str) -> None:
    """Who may read `orders-eu` would read records of `orders`."""
    log.publish(lambda image: [plan_append(image, [draft(NAME)])])

    def plan(prefix: str) -> list[Action]:
        moved = draft(prefix + f"segments/{'b' * 32}/00000000.1.log")
        if how == "append":
            return [plan_append(log.image, [moved])]
        if how == "stage":
            return staged(log.image, [draft(moved.segment, producer_id=0)])
        there = log.image.partition("orders", 0).extents.columns()
        return [replacement(there, [sequenced(moved, 0)], topic_id=ORDERS, partition=0)]

    before = log.image.commit
    with pytest.raises(InvalidRequestError, match="its readers would read them"):
        publish(log, *plan(isolated_prefix(other)))
    assert (log.image.commit, needed(log)) == (before, frozenset())
    publish(log, *plan(isolated_prefix("orders")))
    assert (log.image.commit, needed(log)) == (before + 1, FEATURES)


def test_a_commit_of_another_implementation_is_refused_as_well(log: MetadataLog) -> None:
    """The rule is that of actions, not only of our plans: such a commit does not apply."""
    extent = sequenced(draft(isolated_prefix("orders-eu") + NAME), 0)
    action = plan_append(log.image, [draft(NAME)])
    features = RequireFeatures(readers=tuple(FEATURES), writers=tuple(FEATURES))
    with pytest.raises(InvalidRequestError, match=r"found records of topic 'orders'"):
        publish(log, features, type(action)(extents=(extent,)))


def test_segments_of_all_topics_of_a_writer_are_retired_in_few_ranges(log: MetadataLog) -> None:
    """A writer gives a number once, in whatever directory."""
    names = [f"segments/w/{number:08d}.1.log" for number in range(4)]
    names[1] = isolated_prefix("orders") + names[1]
    names[3] = isolated_prefix("orders-eu") + names[3]
    (ranges,) = with_retired({}, dict.fromkeys(names, 1)).values()
    assert [(one.first, one.last) for one in ranges] == [(0, 3)]
