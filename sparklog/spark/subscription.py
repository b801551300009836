"""The topics and partitions that a query reads: assign, subscribe or subscribePattern.

Every planning step calls `resolve`, which finds new topics and partitions. A pattern may match any part of a
name, and never matches an internal topic: a query with a group would read its own commits in
__consumer_offsets endlessly. Internal topics can be read by name.
Patterns are Python's; those of Kafka's connector are Java's. Syntax that Python accepts with another meaning
is refused: a query would silently miss topics.
Sources: ConsumerStrategy of Spark's Kafka connector (topicRegex.findFirstIn; Admin.listTopics), and Java's
java.util.regex.Pattern.
"""

import re
import warnings
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
        """Return the (topic, partition) pairs to read, sorted.

        Args:
            must_exist: raise if a named topic or partition is missing; a running stream passes False, since
                failOnDataLoss covers deleted topics.

        Raises:
            UnknownTopicError: a named topic or partition does not exist.
        """
        if self.assigned is not None:
            wanted = sorted(self.assigned)
            absent = [
                (topic, partition)
                for topic, partition in wanted
                if topic not in image.topics or partition >= len(image.topics[topic].partitions)
            ]
            if absent and must_exist:
                raise _missing_partitions(absent, image)
            return sorted(set(wanted).difference(absent))
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


def _missing_partitions(missing: list[tuple[str, int]], image: "Image") -> UnknownTopicError:
    names = ", ".join(f"{topic}-{partition}" for topic, partition in missing)
    counts = {topic: len(image.topics[topic].partitions) for topic, _ in missing if topic in image.topics}
    if not counts:
        return _missing([names], image)
    found = "; ".join(f"{topic} has {n} (from 0 to {n - 1})" for topic, n in counts.items())
    return UnknownTopicError(
        "TOPIC_MISSING",
        f"the root has no {names}; partitions of the topics: {found}",
        fix="correct assign, or add partitions to the topic (sparklog topics alter --partitions)",
    )


def parse_subscription(given: Mapping[str, str]) -> Subscription:
    """Parse the strategy option; exactly one must be set."""
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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # about syntax that is refused below
                re.compile(value)
        except re.error as error:
            raise invalid(name, value, f"a regular expression of Python's re ({error})") from None
        if (difference := _difference_to_java(value)) is not None:
            raise invalid(name, value, f"a regular expression of Python's re ({difference})")
        return Subscription(pattern=value)
    return Subscription(assigned=_parse_assign(name, value))


def _difference_to_java(pattern: str) -> str | None:
    """Return a message about syntax with another meaning in Java; None if there is none."""
    in_class = False
    at = 0
    while at < len(pattern):
        char, rest = pattern[at], pattern[at:]
        if char == "\\":
            if not in_class and re.match(r"\\[1-9][0-7]{2}|\\b\{", rest):
                return f"{rest[:4]} at position {at} has another meaning in Java"
            at += 2
            continue
        if in_class and char == "[":
            return f"no class in a class, as at position {at}: write [a-dm-p] for [a-d[m-p]]"
        if in_class and rest.startswith("&&"):
            return f"&& at position {at} is no intersection: write (?![bc])[a-z] for [a-z&&[^bc]]"
        if in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
            at += 1 + rest.startswith("[^")
            at += pattern[at : at + 1] == "]"  # a bracket in the first place is literal
            continue
        at += 1
    return None


def _parse_assign(name: str, value: str) -> tuple[tuple[str, int], ...]:
    pairs: list[tuple[str, int]] = []
    for topic, partitions in parse_json_object(name, value).items():
        if not isinstance(partitions, list) or not all(type(p) is int and p >= 0 for p in partitions):
            raise invalid(name, value, 'JSON of the form {"topic": [0, 1]}')
        pairs.extend((topic, partition) for partition in partitions)
    if not pairs:
        raise invalid(name, value, 'at least one partition, as JSON: {"topic": [0, 1]}')
    return tuple(dict.fromkeys(pairs))
