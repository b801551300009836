"""Our writer of responses against kio's, in every version of every API that is served."""

import dataclasses
import datetime as dt
import io
import random
import struct
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_writer
from kio.static.constants import EntityType

from sparklog_server.protocol.messages import response_schema
from sparklog_server.protocol.responses import Recurring, make, response_writer
from tests.server.fuzzing import random_entity, served_versions

_ROUNDS = 20


def written(entity: Any) -> bytes:
    return b"".join(response_writer(type(entity))(entity))


def by_kio(entity: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(entity))(buffer, entity)
    return buffer.getvalue()


@pytest.mark.sampled(45)
@pytest.mark.parametrize(("key", "version"), served_versions())
def test_is_what_kio_writes(key: int, version: int) -> None:
    schema = response_schema(key, version)
    rng = random.Random(f"{key} {version}")
    entities = [make(schema), *(random_entity(schema, rng) for _ in range(_ROUNDS))]
    for entity in entities:
        assert written(entity) == by_kio(entity)


def created(names: int, configs: int, *, own_lists: bool = False) -> Any:
    """CreateTopics' answer: topics that have the same settings."""
    types = load_payload_module(19, 5, EntityType.response)

    def settings() -> tuple[Any, ...]:
        return tuple(
            make(types.CreatableTopicConfigs, name=f"a.setting.{number}", value="€" * number, config_source=5)
            for number in range(configs)
        )

    same = settings()
    topics = [
        make(types.CreatableTopicResult, name=f"topic-{number}", error_code=number % 2,
             error_message=None if number % 3 else "no", num_partitions=number, replication_factor=1,
             configs=settings() if own_lists else same)
        for number in range(names)
    ]  # fmt: skip
    return make(types.CreateTopicsResponse, topics=topics)


@pytest.mark.parametrize("configs", [0, 1, 7, 8, 60, 140])
@pytest.mark.parametrize("own_lists", [False, True])
def test_a_list_that_occurs_again_is_written_again(configs: int, own_lists: bool) -> None:
    entity = created(20, configs, own_lists=own_lists)
    assert written(entity) == by_kio(entity)


def test_a_list_that_occurs_again_takes_no_more_memory() -> None:
    entity = created(200, 60)
    pieces = response_writer(type(entity))(entity)
    held = {id(piece): len(piece) for piece in pieces}
    assert sum(map(len, pieces)) > 50 * sum(held.values())


@pytest.mark.parametrize("count", [7, 8, 60])
def test_entities_that_recur_in_lists_of_their_own_are_written_as_if_they_did_not(count: int) -> None:
    entity = created(3, 2 * count)
    one, two, three = entity.topics
    common, others = one.configs[:count], one.configs[count:]
    topics = [
        dataclasses.replace(one, configs=Recurring(common)),
        dataclasses.replace(two, configs=Recurring((*common[1:], others[0]))),
        make(type(three), name="x", configs=Recurring((*reversed(common), *others))),
    ]
    assert isinstance(topics[2].configs, Recurring)  # `make` leaves it as it is
    entity = dataclasses.replace(entity, topics=tuple(topics))
    assert written(entity) == by_kio(entity)


def test_lists_that_are_equal_but_of_other_entities_are_told_apart() -> None:
    types = load_payload_module(9, 5, EntityType.response)
    partitions = tuple(
        make(
            types.OffsetFetchResponsePartition, partition_index=number, committed_offset=number, metadata=None
        )
        for number in range(9)
    )
    topics = [make(types.OffsetFetchResponseTopic, name=name, partitions=partitions) for name in ("a", "b")]
    entity = make(types.OffsetFetchResponse, throttle_time=dt.timedelta(seconds=2), topics=topics)
    assert written(entity) == by_kio(entity)


def test_a_number_that_does_not_fit_is_an_error() -> None:
    entity = make(response_schema(10, 3))
    object.__setattr__(entity, "error_code", 1 << 15)
    with pytest.raises(struct.error):
        written(entity)


def test_no_text_where_there_must_be_some_is_an_error() -> None:
    entity = make(response_schema(10, 3))
    object.__setattr__(entity, "host", None)
    with pytest.raises(TypeError, match="found no string"):
        written(entity)
