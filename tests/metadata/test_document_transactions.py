"""Commits of transactions: the same bytes for ever, and none in a document of a lower version."""

import msgspec
import pytest

from sparklog.errors import CorruptLogError
from sparklog.metadata.documents.document import encode_commit
from tests.metadata.golden_transactions import ACTIONS_9
from tests.metadata.test_document import GOLDEN, decode, encoded, header

GOLDEN_9 = GOLDEN.with_name("metadata_commit_9.bin")


def test_golden_commit_of_transactions() -> None:
    assert encode_commit(header(), ACTIONS_9) == GOLDEN_9.read_bytes()
    found, actions = decode(GOLDEN_9.read_bytes())
    assert (found.version, actions) == (9, ACTIONS_9)


def test_many_staged_extents_are_in_columns() -> None:
    body = msgspec.json.decode(GOLDEN_9.read_bytes().splitlines()[1])
    assert [one["type"] for one in body["actions"]][3:5] == ["stage_extents", "stage_columns"]
    assert body["actions"][4]["opens_ms"] == [-1, *[5] * 7]


@pytest.mark.parametrize("number", range(len(ACTIONS_9)))
def test_none_is_in_a_document_of_version_8(number: int) -> None:
    with pytest.raises(CorruptLogError, match="found version 8, expected 9"):
        decode(encoded((ACTIONS_9[number],), version=8))
