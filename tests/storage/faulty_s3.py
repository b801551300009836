"""Requests to an S3 store behind a proxy."""

from collections.abc import Callable

from sparklog.storage.s3 import S3Store
from tests.storage.s3_proxy import Request

MakeStore = Callable[..., S3Store]


def is_put(request: Request) -> bool:
    return request.method == "PUT"


UNSURE = [  # (what goes wrong, did the put take effect?)
    ("SLOW_DOWN", False),
    ("ERROR_BEFORE", False),
    ("ERROR_AFTER", True),
    ("RESET_BEFORE", False),
    ("RESET_AFTER", True),
    ("LATE_ANSWER", True),
    ("CONFLICT", False),
    ("ERROR_IN_200", False),
    ("ERROR_IN_200_AFTER", True),
]
