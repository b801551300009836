"""The topics in a consumer's subscription: all that a coordinator reads of what members send.

Invariants: bytes from clients are hostile: None for whatever is not a subscription, never an exception, and
    no more work than there are bytes.
Not here: who is subscribed (group.py); assignments, which only clients read.
Sources: Kafka ConsumerProtocolSubscription.json (versions 0 to 3 begin alike).
"""

from typing import Final

from sparklog.errors import CorruptLogError
from sparklog.format.kafka_fields import FieldReader

CONSUMER_PROTOCOL_TYPE: Final = "consumer"


def subscribed_topics(metadata: bytes) -> frozenset[str] | None:
    """The topics, or None if this is no consumer's subscription."""
    fields = FieldReader(metadata, "subscription")
    try:
        if fields.number(">h") < 0:
            return None
        return frozenset(fields.string() for _ in range(fields.count(minimum_bytes=2)))
    except CorruptLogError:
        return None
