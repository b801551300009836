"""A sweep aborts uploads of segments, and nobody else's."""

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.errors import NotFoundError
from sparklog.log.segment_file import (
    index_name,
    merged_segment_name,
    segment_name,
    segment_of,
    time_index_name,
)
from sparklog.storage.object_client import Page
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import S3Options
from sparklog.storage.s3_probe import is_of_segment

NOW_MS = 1_000 * 86_400_000
DAY_MS = 86_400_000
OURS = segment_name("0" * 32, 7, 1)
MERGED = merged_segment_name("a.topic_-1", 12, 5, 3, "A" * 22)
NOT_OURS = (
    "backups/nightly.tar",
    "data/segments/0001.log",
    "segments/0001.log",
    f"elsewhere/{OURS}",
    "events-0/part-00000.parquet",
    "t-0/00000000000000000000.log",
    f"isolated/{OURS}",
    f"isolated/t/isolated/t/{OURS}",
)


class Client:
    """A bucket with these uploads, all of eight days ago; listed in pages of two."""

    def __init__(self, *keys: str) -> None:
        self.began = dict.fromkeys(keys, NOW_MS - 8 * DAY_MS)
        self.ended: set[str] = set()
        self.aborted: list[str] = []

    def now_ms(self) -> int:
        return NOW_MS

    def storage_now_ms(self, here_ms: int) -> int:
        return here_ms

    def listed(self, _url: str, _prefix: str) -> Iterator[Page]:
        yield Page(is_last=True)

    def call(self, operation: str, _url: str, **arguments: Any) -> dict[str, Any]:
        if operation == "abort_multipart_upload":
            if arguments["Key"] in self.ended:
                raise NotFoundError("FILE_NOT_FOUND", "NoSuchUpload", fix="none")
            self.aborted.append(arguments["Key"])
        if operation != "list_multipart_uploads":
            return {}
        keys = sorted(key for key in self.began if key > arguments.get("KeyMarker", ""))
        keys = [key for key in keys if key.startswith(arguments["Prefix"])]
        page = [
            {"Key": key, "UploadId": f"of {key}", "Initiated": _date(self.began[key])} for key in keys[:2]
        ]
        answer: dict[str, Any] = {"Uploads": page, "IsTruncated": len(keys) > 2}
        if len(keys) > 2:
            answer |= {"NextKeyMarker": keys[1], "NextUploadIdMarker": f"of {keys[1]}"}
        return answer


def _date(time_ms: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_ms / 1000, dt.UTC)


def swept(client: Client, root: str = "s3://bucket", *, dry_run: bool = False, **given: int) -> int:
    store = S3Store(root, S3Options())
    store.client = client  # type: ignore[assignment]
    return store.sweep_temporary(older_than_ms=DAY_MS, dry_run=dry_run, **given)


def test_strangers_go_on_with_their_uploads() -> None:
    client = Client(*NOT_OURS, OURS, MERGED)
    assert swept(client, dry_run=True) == 2
    assert client.aborted == []
    assert swept(client) == 2
    assert client.aborted == sorted([OURS, MERGED])


def test_names_count_from_the_root() -> None:
    client = Client(f"a/root/{OURS}", f"a/root/b/{OURS}", OURS)
    assert swept(client, "s3://bucket/a/root") == 1
    assert client.aborted == [f"a/root/{OURS}"]


def test_one_that_is_at_work_goes_on() -> None:
    """A task may write for days, and nobody can see whether it does."""
    client = Client(OURS, MERGED)
    client.began[OURS] = NOW_MS - 7 * DAY_MS + 1
    assert swept(client) == 1
    assert client.aborted == [MERGED]
    assert swept(client, unfinished_older_than_ms=8 * DAY_MS + 1) == 0
    assert swept(client, unfinished_older_than_ms=2 * DAY_MS) == 2


def test_one_that_ended_meanwhile_is_no_error() -> None:
    client = Client(OURS, MERGED)
    client.ended = {MERGED}
    assert swept(client) == 2
    assert client.aborted == [OURS]


@pytest.mark.parametrize(
    "name",
    [
        OURS,
        segment_name("f" * 32, 99_999_999),
        MERGED,
        index_name(OURS),
        index_name(MERGED),
        time_index_name(MERGED),
        "t-0/00000000000000000000-" + "A" * 22 + ".log",
        f"isolated/t/{OURS}",
        f"isolated/a.b-c_d/{MERGED}",
        f"isolated/t/{index_name(OURS)}",
        f"isolated/t/{time_index_name(MERGED)}",
        f"isolated/t u/{OURS}",
        *NOT_OURS,
    ],
)
def test_what_is_taken_for_ours_is_what_vacuum_takes_for_ours(name: str) -> None:
    assert is_of_segment(name) == (segment_of(name) is not None)
