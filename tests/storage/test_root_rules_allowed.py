"""The prefix check says where a store would go, however that is spelled."""

import os
import urllib.parse
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.storage import LocalStore, open_store
from sparklog.storage.root_rules import (
    AllowedRoots,
    allowed_by_environment,
    parse_allowed_roots,
    validate_allowed,
)
from sparklog.storage.s3 import S3Store
from sparklog.storage.s3_options import S3Options


def is_allowed(root: str | Path, *lists: str) -> bool:
    try:
        validate_allowed(root, [parse_allowed_roots(text) for text in lists])
    except SparklogError:
        return False
    return True


@pytest.mark.parametrize(
    ("prefix", "root", "allowed"),
    [
        ("s3://b/log", "s3://b/log", True),
        ("s3://b/log", "s3://b/log/", True),
        ("s3://b/log/", "s3://b/log", True),
        ("s3://b/log", "s3://b/log/a/b", True),
        ("s3://b/log", "S3A://b/log/a", True),
        ("s3n://b/log", "s3://b/log/a", True),
        ("s3://b", "s3://b/anything", True),
        ("s3://b/", "s3://b", True),
        ("s3://a,s3://b/log", "s3://b/log", True),
        ("s3://b/log", "s3://b/logs", False),
        ("s3://b/log", "s3://b/log%2Fa", False),
        ("s3://b/log", "s3://b/LOG/a", False),
        ("s3://b/log", "s3://b", False),
        ("s3://b/log", "s3://c/log", False),
        ("s3://b/log", "s3://B/log", False),  # old buckets have capitals, and are others
        ("s3://b/log", "s3://bb/log", False),
        ("s3://b/log", "s3://b/log/../other", False),
        ("s3://b/log", "s3://b//log/a//b", False),
        ("s3://b/log", "s3://b/./log", False),
        ("s3://b/log", "s3://user@b/log", False),
        ("s3://b/log", "s3://b:443/log", False),
        ("s3://b/log", "s3://b/log?x", False),
        ("s3://b/log", "s3://b/log#x", False),
        ("s3://b/log", "/b/log", False),
        ("s3://b/log", "gs://b/log", False),
        ("s3://b/log", "memory://b/log", False),
        ("gs://b/log", "gcs://b/log/a", True),
        ("gs://b/log", "gs://b/logs", False),
        ("az://c/log", "abfs://c/log/a", True),
        ("az://c/log", "abfss://c@acct.dfs.core.windows.net/log", False),
        ("abfs://c@Acct.blob.core.windows.net/log", "abfss://c@acct.dfs.core.windows.net/log/a", True),
        ("abfss://c@acct.dfs.core.windows.net", "abfss://c@other.dfs.core.windows.net/log", False),
        ("s3://b/log", "", False),
        ("/b/log", "s3://b/log", False),
        ("/data/log", "FILE:///data/log/a", True),
        ("file:///data/log", "/data//log/./a/", True),
        ("file:///data/a%20b", "/data/a b", True),
        ("file://localhost/data", "file:/data/x", True),
        ("/data/log", "file:///data/%6cog/x", True),
        ("/data/log", "/data/%6cog/x", False),
        ("/data/log", "//data/log", True),
        ("/data/log", "file:////data/log", True),
        ("/data/log", "/data/logs", False),
        ("/data/log", "/data/Log", False),
        ("/data/log", "/data/log/../other", False),
        ("/data/log", "file:///data/log/%2e%2e/other", False),
        ("/data/log", "file:///data/log/..%2fother", False),
        ("/data/log", "file:///data/log%00/x", False),
        ("/data/log", "file://elsewhere/data/log", False),
        ("/data/log", "relative", False),
        ("/", "/anything", True),
        ("memory://a", "memory://a", True),
        ("memory://a", "memory://ab", False),
    ],
)
def test_spellings(prefix: str, root: str, allowed: bool) -> None:
    assert is_allowed(root, prefix) is allowed


def test_every_list_must_hold_the_root() -> None:
    assert is_allowed("s3://b/a/x", "s3://b/a", "s3://b")
    assert not is_allowed("s3://b/a/x", "s3://b/a", "s3://c")
    assert not is_allowed("s3://c/x", "s3://b/a", "s3://c")
    assert is_allowed("s3://anything")


def test_links_are_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (outside / "log").mkdir(parents=True)
    (inside / "link").symlink_to(outside)
    (inside / "loop").symlink_to(inside / "loop")
    (tmp_path / "alias").symlink_to(inside)
    assert not is_allowed(inside / "link", str(inside))
    assert not is_allowed(inside / "link" / "log", str(inside))
    assert not is_allowed(inside / "link" / "not there yet", str(inside))
    assert is_allowed(tmp_path / "alias" / "log", str(inside))
    assert is_allowed(inside / "log", str(tmp_path / "alias"))
    assert is_allowed(inside / "link" / ".." / "log", str(inside)), "the opener takes .. by the text, too"


def test_what_is_refused_says_what_was_found_and_expected(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(InvalidRequestError, match="ROOT_NOT_ALLOWED") as refused:
        validate_allowed(
            f"{tmp_path}/link/x", [AllowedRoots("SPARKLOG_ALLOWED_ROOTS", (str(tmp_path), "s3://b"))]
        )
    assert f"root '{tmp_path}/link/x': found '/etc/x', expected a place under one of" in str(refused.value)
    assert f"'{tmp_path}', 's3://b' (SPARKLOG_ALLOWED_ROOTS)" in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " , ",
        "relative",
        "gs://",
        "abfss://c@evil.example/x",
        "s3://",
        "s3://b/../c",
        "file://host/x",
        "s3:/b",
    ],
)
def test_a_list_that_is_none(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="INVALID_OPTION"):
        parse_allowed_roots(text)


def test_the_environment() -> None:
    assert allowed_by_environment({}) == ()
    (found,) = allowed_by_environment({"SPARKLOG_ALLOWED_ROOTS": " /a , s3://b/c ,"})
    assert found.prefixes == ("/a", "s3://b/c")
    with pytest.raises(InvalidRequestError, match="SPARKLOG_ALLOWED_ROOTS: found no root"):
        allowed_by_environment({"SPARKLOG_ALLOWED_ROOTS": ""})


PARTS = st.sampled_from(
    ["in", "out", "link", "up", "..", ".", "", "%2e%2e", "%2E.", "..%2fout", "in%2f..", "In", " "]
)
HEADS = st.sampled_from(
    ["{}", "file:{}", "file://{}", "FILE://localhost{}", "//{}", "file:///{}", "file://in{}"]
)


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """in/ and out/, with links between them and up."""
    base = tmp_path_factory.mktemp("tree")
    for name in ("in", "out"):
        (base / name / "in" / "in").mkdir(parents=True)
        (base / name / "out" / "in").mkdir(parents=True)
        (base / name / "link").symlink_to(base / ("out" if name == "in" else "in"))
        (base / name / "up").symlink_to("..")
    (base / "link").symlink_to(base / "in" / "link" / "link")
    return base


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(head=HEADS, parts=st.lists(PARTS, max_size=6), prefix=st.lists(PARTS, max_size=3))
@example(head="{}", parts=["in", "link"], prefix=["in"])
@example(head="file://{}", parts=["in", "%2e%2e", "out"], prefix=["in"])
@example(head="{}", parts=["in "], prefix=["in"])
def test_what_is_allowed_is_opened_within_the_prefix(
    tree: Path, head: str, parts: list[str], prefix: list[str]
) -> None:
    """The store that opens is asked where it is: it knows nothing of the check."""
    root = head.format("/".join([str(tree), *parts]))
    limit = "/".join([str(tree), "in", *prefix])
    allowed = is_allowed(root, limit)
    try:
        store = open_store(root)
    except SparklogError:
        return
    assert isinstance(store, LocalStore)
    bound = os.path.realpath(os.path.abspath(limit.strip()))
    assert allowed == Path(os.path.realpath(store.root)).is_relative_to(bound)


KEYS = st.lists(st.sampled_from(["log", "logs", "..", ".", "", "%2e%2e", "a", "log%2Fa", "LOG"]), max_size=4)


@given(
    head=st.sampled_from(["s3://", "S3://", "s3a://", "s3n://"]),
    bucket=st.sampled_from(["b", "B", "bb", "b.b", "..", "u@b", "b:1"]),
    key=KEYS,
    tail=st.sampled_from(["", "/", "?x", "#x", "//"]),
    prefix=KEYS,
)
def test_what_is_allowed_in_s3_has_its_objects_within_the_prefix(
    head: str, bucket: str, key: list[str], tail: str, prefix: list[str]
) -> None:
    root = head + "/".join([bucket, *key]) + tail
    limit = "/".join(["s3://b", *prefix])
    try:
        bound = S3Store(limit, S3Options(cache_bytes=0)).url
    except SparklogError:
        return
    allowed = is_allowed(root, limit)
    try:
        store = S3Store(root, S3Options(cache_bytes=0))
    except SparklogError:
        assert not allowed
        return
    assert allowed == f"{store.url}/".startswith(f"{bound}/")


@given(st.text(max_size=30), st.sampled_from(["", "/in/", "file:///in/", "s3://b/"]))
def test_any_text_is_allowed_or_refused_by_an_error_of_ours(text: str, head: str) -> None:
    if is_allowed(head + text, "/in,s3://b"):
        place = urllib.parse.unquote(head + text)
        assert "/in" in place or "//b" in place
