"""The throttle time of made answers: in its place, and nothing else is changed, in every version."""

import datetime as dt
import io
from typing import Any

import pytest
from kio.serial import entity_reader

from sparklog_server.api.registry import declared_apis
from sparklog_server.fetch.sessions import PartitionAnswer, encode_fetch_response
from sparklog_server.protocol.apis import ApiKey
from sparklog_server.protocol.messages import message_codec, response_schema
from sparklog_server.protocol.responses import (
    ProducedPartition,
    encode_log_dir,
    encode_produce,
    encode_topics,
    make,
    with_throttle,
)
from sparklog_server.protocol.wire import Response

THROTTLE = dt.timedelta(milliseconds=1234)
VERSIONS = {key: list(entry.versions) for key, entry in declared_apis().items()}


def read(key: int, version: int, response: Response) -> Any:
    schema: Any = response_schema(key, version)
    data = b"".join(bytes(chunk) for chunk in response.chunks)  # type: ignore[arg-type]
    entity, size = entity_reader(schema)(memoryview(data), 0)
    assert size == len(data)
    return entity


def check(key: int, version: int, response: Response) -> None:
    before = read(key, version, response)
    throttled = with_throttle(key, version, response, 1234)
    assert throttled.release is response.release
    after = read(key, version, throttled)
    assert after.throttle_time == THROTTLE
    assert repr(after).replace(repr(THROTTLE), repr(dt.timedelta())) == repr(before)


@pytest.mark.parametrize("version", VERSIONS[ApiKey.PRODUCE])
def test_produce(version: int) -> None:
    topic: str | bytes = "orders" if version < 13 else bytes(16)
    parts = [ProducedPartition(0, 5, -1, 0), ProducedPartition(1, -1, -1, -1, 29, "no")]
    check(ApiKey.PRODUCE, version, Response(chunks=[encode_produce(version, {topic: parts})]))


@pytest.mark.parametrize("version", VERSIONS[ApiKey.FETCH])
def test_fetch(version: int) -> None:
    answer = PartitionAnswer(topic="orders", topic_id="A" * 22, partition=0, chunks=[b"12345"], size=5)
    release = io.BytesIO().close
    chunks = encode_fetch_response(version, [answer])
    check(ApiKey.FETCH, version, Response(chunks=chunks, release=release))


def test_answers_written_by_hand() -> None:
    for version in VERSIONS[ApiKey.DESCRIBE_LOG_DIRS]:
        body = encode_log_dir(version, "file:///x", 0, b"", (1, 2))
        check(ApiKey.DESCRIBE_LOG_DIRS, version, Response(chunks=body))
    check(ApiKey.DESCRIBE_PRODUCERS, 0, Response(chunks=encode_topics({})))


@pytest.mark.parametrize("version", VERSIONS[ApiKey.METADATA])
def test_metadata(version: int) -> None:
    codec = message_codec(ApiKey.METADATA, version)
    empty = make(codec.types.MetadataResponse, cluster_id="C", controller_id=1)
    response = Response(chunks=codec.write(empty))
    if version >= 3:
        check(ApiKey.METADATA, version, response)
    else:
        assert with_throttle(ApiKey.METADATA, version, response, 1234) is response


@pytest.mark.parametrize("key", VERSIONS, ids=lambda key: ApiKey(key).name)
def test_entities_of_every_api(key: int) -> None:
    version = VERSIONS[key][-1]
    codec = message_codec(key, version)
    entity = make(response_schema(key, version))
    throttled = with_throttle(key, version, entity, 1234)
    assert getattr(throttled, "throttle_time", THROTTLE) == THROTTLE
    codec.write(throttled)
