"""Files of settings: Java's format, and references to the environment and to files."""

from pathlib import Path

import javaproperties
import pytest

from sparklog.client.client_config import parse_properties, read_properties, resolved
from sparklog.errors import InvalidRequestError

TEXT = r"""
# comment
! another
a=1
b : 2
c 3
d=x \
   y
e=\u00fc\tz\=
f\ g=h
empty=
key.only
path=C:\\x
trailing=1   """


def test_format_is_that_of_java() -> None:
    expected = {key: value.rstrip() for key, value in javaproperties.loads(TEXT).items()}
    assert parse_properties(TEXT) == expected


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "${env:HOME}")
    (tmp_path / "secret").write_text("from a file\n")
    (tmp_path / "more.properties").write_text("kafka.password=of a key\n")
    file = tmp_path / "client.properties"
    file.write_text(
        "a=${env:MY_PASSWORD}\n"
        f"b=x${{file:{tmp_path}/secret}}y\n"
        f"c=${{file:{tmp_path}/more.properties:kafka.password}}\n"
        "d=${other:x}\n"
    )
    assert read_properties(file) == {
        "a": "${env:HOME}",  # not searched again
        "b": "xfrom a filey",
        "c": "of a key",
        "d": "${other:x}",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${env:NO_SUCH}", r"x: key: found \$\{env:NO_SUCH\}, but no such variable"),
        ("${file:/no/such}", "No such file"),
        ("${file:/no/such:key}", "No such file"),
        ("${file:FILE:other}", "the file has no such key"),
    ],
)
def test_references_that_lead_nowhere(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "file"
    file.write_text("key=top-secret")
    with pytest.raises(InvalidRequestError, match=message) as refused:
        resolved({"key": text.replace("FILE", str(file))}, "x", {})
    assert "top-secret" not in str(refused.value)


def test_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"INVALID_CLIENT_CONFIG.*No such file"):
        read_properties(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequestError, match="no UTF-8"):
        read_properties(tmp_path / "binary")
