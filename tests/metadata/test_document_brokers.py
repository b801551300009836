"""Commits of several brokers: the same bytes for ever, and none in a document of a lower version."""

import pytest

from sparklog.errors import CorruptLogError
from tests.metadata.golden_brokers import ACTIONS_8_BROKERS
from tests.metadata.test_document import GOLDEN, decode, encoded

GOLDEN_8_BROKERS = GOLDEN.with_name("metadata_commit_8_brokers.bin")


def test_golden_commit_of_several_brokers() -> None:
    assert encoded(ACTIONS_8_BROKERS, version=8) == GOLDEN_8_BROKERS.read_bytes()
    assert decode(GOLDEN_8_BROKERS.read_bytes())[1] == ACTIONS_8_BROKERS
    new = [action for action in ACTIONS_8_BROKERS if action.document_version == 8]
    assert len({type(action) for action in new}) == 8
    for action in new:
        with pytest.raises(CorruptLogError, match="found version 7, expected 8"):
            decode(encoded((action,), version=7))
