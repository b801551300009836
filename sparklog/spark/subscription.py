"""Which topics and partitions a query reads: assign, subscribe or subscribePattern.

`resolve` is called at every planning step, which is how new topics and partitions are found. A pattern is
looked for anywhere in a name, and never finds an internal topic: a query with a group would read its own
commits in __consumer_offsets for ever. Who names an internal topic gets it.
A pattern is Python's, and Kafka's connector takes Java's. What means something else in Python, without an
error of Python's own, is refused: a query would miss topics silently.
Sources: ConsumerStrategy of Spark's Kafka connector (topicRegex.findFirstIn; Admin.listTopics), and Java's
java.util.regex.Pattern.
"""

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparklog.client import is_internal
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.metadata import Image
from sparklog.spark.stream_offset import Positions, StreamOffset
from sparklog.spark.values import invalid, parse_json_object

if TYPE_CHECKING:
    from sparklog.metadata import Image

# --- unsubscribed ------------------------------------------------------------------------------------
#
# Topics that a query was reading and that are no longer in its subscription: they keep their positions.
#
# Kafka's connector reports such a drop as data loss, and forgets the positions; should the topic come back,
# it is read from its beginning. Here they stay in the query's offsets while the topic exists, so that it goes
# on where it was left.
#
# Invariants: a drop is reported once, with the micro-batch that leaves the topic out.
# Not here: topics that were deleted (ranges.py).


_NAMED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Continued:
    """Where a query stands, by what it subscribes to now.

    Fields:
        positions: of what it reads; also of what came back.
        kept: of what it does not read any more.
        dropped: those of `kept` that it has been reading until now.
    """

    positions: Positions
    kept: Positions
    dropped: Positions


def continue_with(
    start: StreamOffset, positions: Positions, subscribed: Collection[tuple[str, int]], image: Image
) -> Continued:
    """Sort the positions of `start`; `positions` are those of them whose topics still exist."""
    subscribed = set(subscribed)
    known = {**still_kept(start, image), **positions}
    kept = {tp: offset for tp, offset in known.items() if tp not in subscribed}
    return Continued(
        positions={tp: offset for tp, offset in known.items() if tp in subscribed},
        kept=kept,
        dropped={tp: offset for tp, offset in kept.items() if tp in positions},
    )


def still_kept(offset: StreamOffset, image: Image) -> Positions:
    """Positions of topics that were dropped before, and exist, as the same ones."""
    return {
        (topic, partition): position
        for (topic, partition), position in offset.kept.items()
        if topic in image.topics
        and image.topics[topic].topic_id == offset.topic_ids.get(topic)
        and partition < len(image.topics[topic].partitions)
    }


def drop_text(dropped: Positions, *, by_pattern: bool, restart: bool = False) -> str | None:
    """The loss to report; None if there is none. A pattern never meant internal topics.

    Args:
        restart: the micro-batch was planned without them, by a Spark that did not say where it starts.
    """
    lost = [
        f"{topic}-{partition} at offset {offset}"
        for (topic, partition), offset in sorted(dropped.items())
        if not (by_pattern and is_internal(topic))
    ]
    if not lost:
        return None
    names = ", ".join(lost[:_NAMED]) + (f" and {len(lost) - _NAMED} more" if len(lost) > _NAMED else "")
    if restart:
        return (
            f"{names}: not among the topics and partitions to read when this micro-batch was planned. What "
            "follows is not read, and if they are subscribed to again they are read from the beginning: a "
            "Spark before 4.2 does not let positions be kept. To go on where they were left, subscribe to "
            "them again, and remove this micro-batch before it has run: the newest file in the directory "
            "offsets of the checkpoint"
        )
    return (
        f"{names}: no longer among the topics and partitions to read, so what follows is not read. The "
        "positions are kept while the topic exists, in case it is subscribed to again"
    )


# --- subscription ------------------------------------------------------------------------------------


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
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)  # of what is refused below
                re.compile(value)
        except re.error as error:
            raise invalid(name, value, f"a regular expression as Python's re has them ({error})") from None
        if (difference := _difference_to_java(value)) is not None:
            raise invalid(name, value, f"a regular expression as Python's re has them ({difference})")
        return Subscription(pattern=value)
    return Subscription(assigned=_parse_assign(name, value))


def _difference_to_java(pattern: str) -> str | None:
    """Return what has another meaning in Java, and is no error in Python; None if there is nothing."""
    in_class = False
    at = 0
    while at < len(pattern):
        char, rest = pattern[at], pattern[at:]
        if char == "\\":
            if not in_class and re.match(r"\\[1-9][0-7]{2}|\\b\{", rest):
                return f"{rest[:4]} at position {at} is something else than in Java"
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
            at += pattern[at : at + 1] == "]"  # the first one stands for itself
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
