"""Names in requests whose bytes are not UTF-8: the connection is closed, and that is all."""

import logging
from typing import Any

import pytest

from tests.support.running_broker import RunningBroker
from tests.support.told import Told
from tests.support.wire_client import WireClient

NAME = "QQQQ"
REQUESTS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "Metadata": (3, 9, {"topics": [{"_": "MetadataRequestTopic", "name": NAME}]}),
    "OffsetFetch": (9, 7, {"group_id": NAME, "topics": None, "require_stable": False}),
    "FindCoordinator": (10, 2, {"key": NAME, "key_type": 0}),
    "Heartbeat": (12, 4, {"group_id": NAME, "generation_id": 1, "member_id": "", "group_instance_id": None}),
    "DescribeGroups": (15, 5, {"groups": [NAME], "include_authorized_operations": False}),
    "InitProducerId": (
        22,
        4,
        {"transactional_id": NAME, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1},
    ),
    "DeleteGroups": (42, 2, {"groups_names": [NAME]}),
}


@pytest.mark.parametrize("data", [b"\xff\xfe\xfd\xfc", b"ab\xc3(", b"a\xed\xa0\x80", b"\xf8\x88\x80\x80"])
@pytest.mark.parametrize("name", REQUESTS)
def test_a_name_that_is_not_utf8_closes_its_connection(
    running_broker: RunningBroker,
    name: str,
    data: bytes,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    told: Told,
) -> None:
    key, version, fields = REQUESTS[name]
    with caplog.at_level(logging.WARNING), WireClient(running_broker.host, running_broker.port) as client:
        send = client.send_frame
        monkeypatch.setattr(client, "send_frame", lambda payload: send(payload.replace(b"QQQQ", data)))
        client.send(key, version, **fields)
        assert client.receive_frame() is None
    (closed,) = told.records("sparklog_server.network")
    assert closed.levelno == logging.WARNING
    assert "closed: InvalidUnicode" in closed.getMessage()
    with WireClient(running_broker.host, running_broker.port) as client:
        assert client.ask(3, 9, topics=[]).topics == ()


def test_a_client_id_that_is_not_utf8_closes_its_connection(
    running_broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        WireClient(running_broker.host, running_broker.port, NAME) as client,
    ):
        send = client.send_frame
        monkeypatch.setattr(client, "send_frame", lambda payload: send(payload.replace(b"QQQQ", b"\xff" * 4)))
        client.send(3, 9, topics=[])
        assert client.receive_frame() is None
    assert "closed: client id: 'utf-8' codec" in caplog.text
