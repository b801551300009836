"""An order names its topics in a list: a text would be taken for one topic a letter."""

from collections.abc import Callable

import pytest

from sparklog.client import SparkLog
from sparklog.clock import ManualClock
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.maintenance import compact, expire, optimize
from sparklog.metadata import MetadataLog

Order = Callable[[MetadataLog, str], object]
CLOCK = ManualClock()
ORDERS = {
    "optimize": lambda metadata, topics: optimize(metadata, CLOCK, topics),
    "compact": lambda metadata, topics: compact(metadata, CLOCK, topics),
    "expire": lambda metadata, topics: expire(metadata, CLOCK.now_ms(), topics),
}


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_text_is_refused_though_each_of_its_letters_is_a_topic(order: Order, log: SparkLog) -> None:
    log.create_topic("a")
    log.create_topic("b")
    with pytest.raises(InvalidRequestError, match=r"found the text 'ab', expected a list.*pass \['ab'\]"):
        order(log.metadata, "ab")


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_topic_that_is_not_there_is_named(order: Callable[..., object], log: SparkLog) -> None:
    with pytest.raises(UnknownTopicError, match="'nosuch'"):
        order(log.metadata, ["t", "nosuch"] if order is not ORDERS["compact"] else ["nosuch"])
