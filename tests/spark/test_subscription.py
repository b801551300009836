"""Which topics a subscription finds, against an image: as Kafka's connector would."""

import pytest

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import InvalidRequestError, UnknownTopicError
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


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("[a-z&&[^b]]", "&& at position 4 is no intersection"),
        ("^[a&&b]$", "&& at position 3"),
        ("[a-d[m-p]]", "no class in a class, as at position 4"),
        ("x[^][o]", "no class in a class, as at position 4"),
        (r"[\]a[b]", "no class in a class, as at position 4"),
        (r"(a)\123", "at position 3 has another meaning in Java"),
        (r"\b{g}orders", "at position 0 has another meaning in Java"),
        (r"\p{Alpha}+", r"bad escape \p"),
        (r"\Qa.b\E", r"bad escape \Q"),
        ("(?<name>a)", "unknown extension"),
        ("a(?i)b", "global flags not at the start"),
        ("(?<=a+)b", "look-behind requires fixed-width"),
        ("[a", "unterminated character set"),
    ],
)
def test_what_java_reads_otherwise_is_refused(pattern: str, said: str) -> None:
    """A pattern of a Kafka job must not find fewer topics here without a word."""
    with pytest.raises(InvalidRequestError, match="of Python's re") as caught:
        parse_subscription({"subscribepattern": pattern})
    assert caught.value.code == "INVALID_OPTION"
    assert said in caught.value.message


@pytest.mark.parametrize(
    ("pattern", "topics"),
    [
        (r"^[\w.\-]+_us$", ["orders_us"]),
        (r"\[|^flights", ["flights"]),
        ("[]f]lights", ["flights"]),
        ("[^]f]lights|a&&b", []),
        ("(?![o])[a-z]+ights", ["flights"]),
        (r"[\[&f]light", ["flights"]),
        ("(?i)FLIGHTS", ["flights"]),
        ("f++lights|(?>orders)_eu$", ["flights", "old.orders_eu", "orders_eu"]),
    ],
)
def test_what_both_read_alike_is_taken(log: SparkLog, pattern: str, topics: list[str]) -> None:
    assert found(parse_subscription({"subscribepattern": pattern}), log) == topics


@pytest.mark.parametrize(
    ("assign", "message", "fix"),
    [
        ('{"flights": [0, 1, 7]}', "no flights-1, flights-7; partitions of the topics: flights has 1",
         "correct assign, or add partitions"),
        ('{"flights": [1], "no": [0]}', "no flights-1, no-0; partitions of the topics: flights has 1",
         "correct assign, or add partitions"),
        ('{"no": [0]}', "the root has no no-0; its topics: flights", "create the topic first"),
    ],
)  # fmt: skip
def test_a_partition_that_is_missing_is_no_missing_topic(
    log: SparkLog, assign: str, message: str, fix: str
) -> None:
    subscription = parse_subscription({"assign": assign})
    with pytest.raises(UnknownTopicError) as caught:
        subscription.resolve(log.image, must_exist=True)
    assert message in caught.value.message
    assert fix in caught.value.fix
    present = [("flights", 0)] if "[0, 1" in assign else []
    assert subscription.resolve(log.image, must_exist=False) == present


@pytest.mark.parametrize("pattern", [".*", "offsets", "^__consumer_offsets$"])
def test_a_pattern_never_finds_internal_topics(log: SparkLog, pattern: str) -> None:
    assert "__consumer_offsets" not in found(parse_subscription({"subscribepattern": pattern}), log)


def test_an_internal_topic_can_be_named(log: SparkLog) -> None:
    assert found(parse_subscription({"subscribe": "__consumer_offsets"}), log) == ["__consumer_offsets"]
