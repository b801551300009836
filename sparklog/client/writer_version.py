"""A version of an application: what makes a write that is repeated a single one.

Invariants: immutable.
Not here: what the image remembers of them (metadata).
"""

import dataclasses
from collections.abc import Sequence

from sparklog.errors import InvalidRequestError
from sparklog.metadata import MAX_WRITER_TXNS, Action, Image, WriterTxn, why_illegal_writer_txn


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WriterVersion:
    """`version` of `application`; `content` says what is in it, or is empty."""

    application: str
    version: int
    content: str = ""

    def validate(self) -> None:
        """InvalidRequestError if it can be in no log."""
        reason = why_illegal_writer_txn(
            WriterTxn(
                application=self.application, version=self.version, topics=("any",), content=self.content
            )
        )
        if reason is not None:
            raise InvalidRequestError(
                "INVALID_ACTIONS", reason, fix="Give a name, and a version that counts from 0"
            )

    def makes_forget(self, image: Image, actions: Sequence[Action]) -> dict[str, str]:
        """Topics that forget another application through these actions, and which."""
        forgotten = {}
        for action in actions:
            for topic_id in action.topics if isinstance(action, WriterTxn) else ():
                topic = image.topic_by_id.get(topic_id)
                if topic is None or self.application in topic.writer_txns:
                    continue
                if len(topic.writer_txns) >= MAX_WRITER_TXNS:
                    forgotten[topic.name] = next(iter(topic.writer_txns))
        return forgotten
