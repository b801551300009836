"""Documents that are intact, and made to do harm: a clear error that names the file, and no wrong image."""

import pytest

from sparklog.errors import CorruptLogError, SparklogError
from sparklog.metadata import (
    AddToTransaction,
)
from sparklog.metadata.documents.document import Header, checksum, decode_commit, decode_request
from sparklog.metadata.documents.properties import DIRECTORY, commit_of, manifest_of
from sparklog.metadata.documents.snapshot_extents import decode_extents, encode_extents
from sparklog.metadata.model.extent_list import Extent, columns_of
from sparklog.metadata.model.transaction_values import TOPIC_WEIGHT
from sparklog.storage import MemoryStore
from tests.metadata.opened_logs import opened, set_config
from tests.metadata.transacting import Root

CLUSTER = "C" * 22
DEEP = "[" * 100_000 + "]" * 100_000
HEADER = (
    '{"version":%s,"kind":"%s","commit":5,"cluster_id":"CCCCCCCCCCCCCCCCCCCCCC",'
    '"uuid":"UUUUUUUUUUUUUUUUUUUUUU","previous":"","timestamp_ms":0,"length":%d,"crc32c":"'
)


def intact(body: str, *, version: str = "1", kind: str = "commit") -> bytes:
    prefix = (HEADER % (version, kind, len(body))).encode()
    suffix = b'"}\n' + body.encode() + b"\n"
    return prefix + checksum(prefix, b"00000000", suffix).encode() + suffix


@pytest.mark.parametrize(
    "body",
    [
        DEEP,
        f'{{"actions":{DEEP}}}',
        f'{{"epoch":{DEEP}}}',
        f'{{"actions":[{{"type":"elect_leader","x":{DEEP}}}]}}',
        f'{{"actions":[{{"type":"append_columns","topics":[],"segments":[],"partition":{DEEP}}}]}}',
    ],
)
def test_a_commit_that_is_nested_deeply_is_corrupt(body: str) -> None:
    with pytest.raises(CorruptLogError, match=r"here.*cannot be decoded"):
        decode_commit(intact(body), where="here", commit=5, cluster_id=CLUSTER)


def test_a_header_that_is_nested_deeply_is_corrupt() -> None:
    data = intact('{"actions":[]}', version="[" * 1_500 + "]" * 1_500)
    with pytest.raises(CorruptLogError, match=r"here.*cannot be decoded"):
        decode_commit(data, where="here", commit=5, cluster_id=CLUSTER)


def test_a_request_that_is_nested_deeply_is_corrupt() -> None:
    data = intact(f'{{"base":1,"nonce":"x","publish":{DEEP}}}', kind="request")
    with pytest.raises(CorruptLogError, match=r"here.*cannot be decoded"):
        decode_request(data, where="here", sequence=5, cluster_id=CLUSTER)


@pytest.mark.slow
def test_extents_with_a_wrong_byte_anywhere_are_corrupt_or_read() -> None:
    """Also where Arrow has errors of its own, such as a KeyError for a dictionary that is not there."""
    extent = Extent(
        topic_id="T" * 22,
        partition=0,
        segment="segments/a/00000000.0.log",
        position=0,
        size=100,
        base_offset=0,
        record_count=1,
        max_timestamp_ms=0,
        offset_delta=0,
    )
    data = encode_extents([columns_of([extent])])
    refused: list[str] = []
    for position in range(len(data)):
        for value in (0, 1, 255):
            damaged = bytearray(data)
            damaged[position] = value
            try:
                decode_extents(memoryview(bytes(damaged)), "here")
            except SparklogError as error:
                refused.append(error.message)
    assert len(refused) > 100
    assert all("here" in message for message in refused)


@pytest.mark.parametrize("digits", ["\u0660" * 18 + "\u0669\u0669", "0" * 19 + "\u0669"])
def test_names_with_digits_of_other_scripts_are_somebody_elses(memory: MemoryStore, digits: str) -> None:
    set_config(opened(memory), "a")
    names = f"{DIRECTORY}/{digits}.json", f"{DIRECTORY}/{digits}.snapshot/manifest.json"
    for name in names:
        memory.put_if_absent(name, b"")
    assert (commit_of(names[0]), manifest_of(names[1])) == (None, None)
    assert opened(memory).image.commit == 0


def test_a_group_that_one_action_adds_twice_is_there_once() -> None:
    root = Root()
    producer_id, producer_epoch = root.begin()
    for groups in (("a", "b", "a"), ("b", "c", "c")):
        root.apply(
            AddToTransaction(
                transactional_id="app",
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                time_ms=0,
                groups=groups,
            )
        )
    assert root.image.transactions["app"].groups == ("a", "b", "c")
    assert root.image.transactions.weight == 3 * (TOPIC_WEIGHT + 1)


def test_the_header_of_these_tests_is_one() -> None:
    header, actions = decode_commit(intact('{"actions":[]}'), where="here", commit=5, cluster_id=CLUSTER)
    assert isinstance(header, Header)
    assert actions == ()
