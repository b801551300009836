"""A client that dies between the head of a PUT and its body leaves nothing behind."""

import socket
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSPreparedRequest

from sparklog.clock import ManualClock
from sparklog.errors import StorageError
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import parse_storage_options
from tests.seaweed import KEY, SECRET, SeaweedServer

TRIES = 20


class _DeadError(Exception):
    """In the place of sending."""


def _head_of(request: AWSPreparedRequest) -> bytes:
    target = urlsplit(request.url)
    fields = {"Host": target.netloc}
    for name, value in request.headers.items():
        fields[name] = value.decode() if isinstance(value, bytes) else value
    lines = [f"PUT {target.path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def test_a_put_without_its_body_is_no_object(
    s3_server: SeaweedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a checksum many of them were empty objects, whose names nobody could have any more."""
    server = urlsplit(s3_server.endpoint_url)
    options = parse_storage_options({"key": KEY, "secret": SECRET, "endpoint_url": s3_server.endpoint_url})
    root = s3_server.new_root()
    store = S3Store(root, options, ManualClock())
    store.put_if_absent("before", b"there")
    heads: list[bytes] = []

    def die(_: object, request: AWSPreparedRequest) -> None:
        heads.append(_head_of(request))
        raise _DeadError

    with monkeypatch.context() as dying:
        dying.setattr("botocore.httpsession.URLLib3Session.send", die)
        for number in range(TRIES):
            with pytest.raises((_DeadError, StorageError)):
                store.put_if_absent(f"torn-{number}", b"x" * 500)
            with socket.create_connection((server.hostname, server.port)) as connection:
                connection.sendall(heads[-1])
    other = S3Store(root, options, ManualClock())
    other.put_if_absent("behind", b"there")
    assert sorted(one.name for one in other.list("")) == ["before", "behind"]
