"""The topics that an order is for, as its caller names them.

A text is a collection of letters: `optimize(..., "ab")` would be an order for the topics a and b, and
`expire(..., "ab")` would remove their records. So it is refused, wherever topics are named.
"""

from collections.abc import Collection

from sparklog.errors import InvalidRequestError
from sparklog.metadata import Image


def named_topics(image: Image, topics: Collection[str]) -> list[str]:
    """Their names, in the caller's order.

    Raises:
        UnknownTopicError: TOPIC_MISSING.
        InvalidRequestError: INVALID_OPTION, a text instead of a list of names.
    """
    if isinstance(topics, str):
        raise InvalidRequestError(
            "INVALID_OPTION",
            f"topics: found the text {topics!r}, expected a list of names",
            fix=f"write [{topics!r}], or leave topics out for all of them",
        )
    return [image.topic(name).name for name in topics]
