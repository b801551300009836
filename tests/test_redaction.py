"""Secrets do not show, and to hide them takes time in proportion to the text."""

import re
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sparklog.errors import HIDDEN, shown, without_user_info

# What is meant, as an expression that takes quadratic time.
MEANT = re.compile(r"(?<=//)[^/@\s]*@|(?<![\w/])[^/@\s,:]+:[^/@\s,]*@")
MEGABYTE = 1 << 20


@example("s3://user:pass@host/path, x:y@z")
@example("a,b:c@d")
@example("/a:b:c@")
@example("//a,b@c:d@@e:@")
@given(st.text(alphabet="a1-/:@, \n", max_size=20))
def test_what_is_hidden(text: str) -> None:
    assert without_user_info(text) == MEANT.sub(f"{HIDDEN}@", text)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "-" * MEGABYTE,
        "-:" * MEGABYTE,
        "a:" * MEGABYTE + "@",
        "//" * MEGABYTE,
        "@" * MEGABYTE,
        ", " * MEGABYTE,
    ],
    ids=["dashes", "colons", "names", "slashes", "at", "commas"],
)
def test_a_megabyte_takes_no_longer_than_a_megabyte(text: str) -> None:
    """A quadratic expression takes hours."""
    began = time.thread_time()
    assert len(shown("option", text)) < 400
    assert time.thread_time() - began < 30
