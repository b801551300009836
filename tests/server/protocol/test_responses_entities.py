"""Entities without knowing their version; errors as Kafka's codes."""

import datetime as dt
import inspect
import uuid
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

import sparklog.errors
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.metadata import new_id
from sparklog_server.protocol.apis import BY_CODE, error_code
from sparklog_server.protocol.responses import field, make, maker, topic_id_text, topic_uuid


def types(key: int, version: int) -> Any:
    return load_payload_module(key, version, EntityType.response)


def test_what_a_version_lacks_is_dropped_and_what_is_missing_has_kafkas_default() -> None:
    old = make(types(3, 0).MetadataResponse, cluster_id="c", throttle_time=7)
    assert (old.brokers, old.topics) == ((), ())
    new = make(types(3, 9).MetadataResponse, cluster_id="c", throttle_time=7)
    assert (new.cluster_id, new.throttle_time, new.controller_id) == ("c", dt.timedelta(milliseconds=7), -1)


def test_a_field_that_no_version_has_is_an_error() -> None:
    with pytest.raises(TypeError, match="no version has a field 'cluster'"):
        make(types(3, 0).MetadataResponse, cluster="c")


def test_values_are_converted() -> None:
    topic_id = new_id()
    topic = make(types(3, 12).MetadataResponseTopic, error_code=3, name="t", topic_id=topic_id, partitions=[])
    assert topic.error_code is ErrorCode.unknown_topic_or_partition
    assert (topic.partitions, topic.topic_id) == ((), topic_uuid(topic_id))
    part = make(types(0, 8).PartitionProduceResponse, log_append_time=1_700_000_000_123)
    assert field(part, "log_append_time") == 1_700_000_000_123
    assert make(types(0, 8).PartitionProduceResponse, log_append_time=-1).log_append_time is None


def test_fields_in_milliseconds_and_defaults() -> None:
    response = make(types(3, 9).MetadataResponse, throttle_time=90_061_001)
    assert field(response, "throttle_time") == 90_061_001
    assert field(response, "missing", 5) == 5


def test_topic_ids_there_and_back() -> None:
    for _ in range(50):
        text = new_id()
        assert topic_id_text(topic_uuid(text)) == text
    value = uuid.UUID(int=(1 << 128) - 1)
    assert topic_uuid(topic_id_text(value)) == value


def test_every_class_of_errors_has_a_code() -> None:
    classes = [
        one
        for _, one in inspect.getmembers(sparklog.errors, inspect.isclass)
        if issubclass(one, SparklogError) and one is not SparklogError
    ]
    assert len(classes) > 10
    for one in classes:
        assert error_code(one("INTERNAL", "x", fix="y")) is not ErrorCode.unknown_server_error


def test_exact_codes_win_and_are_declared() -> None:
    assert set(BY_CODE) <= set(sparklog.errors.CODES)
    assert error_code(InvalidRequestError("TOPIC_EXISTS", "x", fix="y")) is ErrorCode.topic_already_exists
    assert error_code(InvalidRequestError("INVALID_ROWS", "x", fix="y")) is ErrorCode.invalid_request
    assert error_code(KeyError()) is ErrorCode.unknown_server_error
    assert error_code(TimeoutError()) is ErrorCode.request_timed_out


@pytest.mark.parametrize("version", range(3, 6))
def test_a_maker_makes_what_make_makes(version: int) -> None:
    types = load_payload_module(15, version, EntityType.response)
    fields = {"group_state": "Dead", "error_code": 3}
    one = maker(types.DescribedGroup, "group_id", **fields)
    for name in ("a", "b"):
        assert one(name) == make(types.DescribedGroup, group_id=name, **fields)
