"""Which topics and partitions a query reads: assign, subscribe or subscribePattern.

`resolve` is called at every planning step, which is how new topics and partitions are found. A pattern is
looked for anywhere in a name, and never finds an internal topic: a query with a group would read its own
commits in __consumer_offsets for ever. Who names an internal topic gets it.
Sources: ConsumerStrategy of Spark's Kafka connector (topicRegex.findFirstIn; Admin.listTopics).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.spark.values import invalid, parse_json_object

if TYPE_CHECKING:
    from sparklog.metadata import Image

_STRATEGIES = ("subscribe", "subscribePattern", "assign")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Exactly one of the three is set."""

    assigned: tuple[tuple[str, int], ...] | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None

    def resolve(self, image: "Image", *, must_exist: bool) -> list[tuple[str, int]]:
        """The (topic, partition) pairs to read, in order of topic and partition.

        Args:
            must_exist: fail when a named topic or partition is missing; a running stream passes
                False, because there a vanished topic is a matter of failOnDataLoss.

        Raises:
            UnknownTopicError: a named topic or partition does not exist.
        """
        if self.assigned is not None:
            wanted = sorted(self.assigned)
            missing = [
                f"{topic}-{partition}"
                for topic, partition in wanted
                if topic not in image.topics or partition >= len(image.topics[topic].partitions)
            ]
            if missing and must_exist:
                raise _missing(missing, image)
            return [tp for tp in wanted if f"{tp[0]}-{tp[1]}" not in missing]
        if self.topics is not None:
            missing = [topic for topic in self.topics if topic not in image.topics]
            if missing and must_exist:
                raise _missing(missing, image)
            names = [topic for topic in self.topics if topic in image.topics]
        else:
            from sparklog.metadata import is_internal  # noqa: PLC0415 - options need no Arrow

            compiled = re.compile(self.pattern or "")
            names = [topic for topic in image.topics if compiled.search(topic) and not is_internal(topic)]
        return [(name, p) for name in sorted(names) for p in range(len(image.topics[name].partitions))]


def _missing(names: list[str], image: "Image") -> UnknownTopicError:
    from sparklog.metadata import is_internal  # noqa: PLC0415 - as above

    known = ", ".join(sorted(name for name in image.topics if not is_internal(name))[:10]) or "none yet"
    return UnknownTopicError(
        "TOPIC_MISSING",
        f"the root has no {', '.join(names)}; its topics: {known}",
        fix="correct the name, or create the topic first (sparklog topics create)",
    )


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """Read the one strategy option that must be there."""
    present = [name for name in _STRATEGIES if name.lower() in given]
    if len(present) != 1:
        problem = f"{' and '.join(present)} are all set" if present else "none of them is set"
        raise InvalidRequestError(
            "INVALID_OPTION" if present else "MISSING_OPTION",
            f"exactly one of {', '.join(_STRATEGIES)} must be set; {problem}",
            fix='set option subscribe to the topic, for example .option("subscribe", "flights")',
        )
    name = present[0]
    value = given[name.lower()].strip()
    if name == "subscribe":
        topics = tuple(dict.fromkeys(topic.strip() for topic in value.split(",") if topic.strip()))
        if not topics:
            raise invalid(name, value, "at least one topic")
        return Subscription(topics=topics)
    if name == "subscribePattern":
        if not value:
            raise invalid(name, value, "a regular expression")
        try:
            re.compile(value)
        except re.error as error:
            raise invalid(name, value, f"a regular expression ({error})") from None
        return Subscription(pattern=value)
    return Subscription(assigned=_parse_assign(name, value))


def _parse_assign(name: str, value: str) -> tuple[tuple[str, int], ...]:
    pairs: list[tuple[str, int]] = []
    for topic, partitions in parse_json_object(name, value).items():
        if not isinstance(partitions, list) or not all(type(p) is int and p >= 0 for p in partitions):
            raise invalid(name, value, 'JSON of the form {"topic": [0, 1]}')
        pairs.extend((topic, partition) for partition in partitions)
    if not pairs:
        raise invalid(name, value, 'at least one partition, as JSON: {"topic": [0, 1]}')
    return tuple(dict.fromkeys(pairs))
