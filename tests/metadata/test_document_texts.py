"""Texts that no document can hold."""

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.metadata import SetConfigs
from sparklog.metadata.documents.document import encode_commit
from tests.metadata.test_document import header


@pytest.mark.parametrize("text", ["z\udcff", "\ud800"])
def test_a_text_that_utf8_cannot_write_is_in_no_document(text: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"INVALID_ACTIONS.*commit 7: found 'z?\\ud.*half of a"):
        encode_commit(header(commit=7), [SetConfigs(configs={"retention.ms": text})])
