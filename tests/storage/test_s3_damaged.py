"""Answers that are damaged on the way, which TLS tells in the midst of them."""

from types import SimpleNamespace
from typing import Any

import pytest
from urllib3.exceptions import HTTPError, ProtocolError, SSLError

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.storage import IndefinitePutError, object_probe, s3_client
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import S3Options

DAMAGED = pytest.mark.parametrize(
    "error", [SSLError("[SSL: DECRYPTION_FAILED_OR_BAD_RECORD_MAC]"), ProtocolError("broken")]
)


class DamagedLine:
    """botocore's client of a store with one object, "x"; the first `left` answers end in an error."""

    def __init__(self, error: HTTPError, left: int) -> None:
        events = SimpleNamespace(register=lambda *_: None)
        self.meta = SimpleNamespace(endpoint_url="https://store", events=events)
        self.left = left
        self.attempts = 0
        self._error = error

    def get_object(self, **_: Any) -> dict[str, Any]:
        return {"Body": SimpleNamespace(read=self._answer), "ContentRange": "bytes 0-0/1", "ETag": "x"}

    def put_object(self, **_: Any) -> dict[str, Any]:
        self._answer()
        return {"ETag": "x"}

    def _answer(self) -> bytes:
        self.attempts += 1
        if self.attempts <= self.left:
            raise self._error
        return b"x"


def store_behind(line: DamagedLine, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    monkeypatch.setattr(s3_client, "connect", lambda *_, **__: line)
    store = S3Store("s3://bucket/root", S3Options(key="k", secret="s"), ManualClock())
    monkeypatch.setattr(object_probe, "passed", {store.client.identity})
    return store


@DAMAGED
def test_a_body_that_is_damaged_is_asked_for_again(error: HTTPError, monkeypatch: pytest.MonkeyPatch) -> None:
    line = DamagedLine(error, left=2)
    assert store_behind(line, monkeypatch).read("a", 0, 1) == b"x"
    assert line.attempts == 3


@DAMAGED
def test_a_line_that_stays_damaged_is_a_store_that_is_not_available(
    error: HTTPError, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError, match="STORE_UNAVAILABLE"):
        store_behind(DamagedLine(error, left=1 << 30), monkeypatch).read("a", 0, 1)


@DAMAGED
def test_a_put_whose_answer_is_damaged_may_have_happened(
    error: HTTPError, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = DamagedLine(error, left=1)
    with pytest.raises(IndefinitePutError):
        store_behind(line, monkeypatch).put_if_absent("a", b"x")
    assert line.attempts == 1
