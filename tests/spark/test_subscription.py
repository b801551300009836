"""Which topics a subscription finds, against an image: as Kafka's connector would."""

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.spark.subscription import Subscription, parse_subscription


@pytest.fixture
def log(root: str) -> SparkLog:
    opened = sparklog.open(root, create=True)
    for topic in ("orders_eu", "orders_us", "old.orders_eu", "flights"):
        opened.create_topic(topic, partitions=1)
    opened.commit_offsets("g", {("flights", 0): 0})
    assert "__consumer_offsets" in opened.image.topics
    return opened


def found(subscription: Subscription, log: SparkLog) -> list[str]:
    return sorted({topic for topic, _ in subscription.resolve(log.image, must_exist=True)})


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        ("^orders_", ["orders_eu", "orders_us"]),
        ("orders", ["old.orders_eu", "orders_eu", "orders_us"]),
        ("_eu$", ["old.orders_eu", "orders_eu"]),
        ("^flights$", ["flights"]),
        ("flight|_us", ["flights", "orders_us"]),
        ("nothing", []),
    ],
)
def test_a_pattern_is_looked_for_anywhere_in_a_name(log: SparkLog, pattern: str, topics: list[str]) -> None:
    assert found(parse_subscription({"subscribepattern": pattern}), log) == topics


@pytest.mark.parametrize("pattern", [".*", "offsets", "^__consumer_offsets$"])
def test_a_pattern_never_finds_internal_topics(log: SparkLog, pattern: str) -> None:
    assert "__consumer_offsets" not in found(parse_subscription({"subscribepattern": pattern}), log)


def test_an_internal_topic_can_be_named(log: SparkLog) -> None:
    assert found(parse_subscription({"subscribe": "__consumer_offsets"}), log) == ["__consumer_offsets"]
