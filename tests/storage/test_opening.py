"""Which roots open_store takes, and what it says about the others."""

import sys
from pathlib import Path

import pytest

import sparklog.storage
from sparklog.errors import InvalidRequestError, NotFoundError
from sparklog.storage import LocalStore, MemoryStore, open_store


def test_paths_and_file_urls_name_the_same_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "a b%"
    root.mkdir()
    store = open_store(root)
    assert isinstance(store, LocalStore)
    store.put_if_absent("x", b"1")
    monkeypatch.chdir(tmp_path)
    for name in (
        str(root),
        "a b%",
        store.url,
        f"file://localhost{tmp_path}/a%20b%25",
        f"file:{tmp_path}/a%20b%25",
    ):
        assert open_store(name).read("x") == b"1"
    assert store.url == f"file://{tmp_path}/a%20b%25"


def test_relative_root_does_not_move_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_store("root", create=True)
    monkeypatch.chdir("/")
    store.put_if_absent("x", b"1")
    assert (tmp_path / "root" / "x").exists()


@pytest.mark.parametrize("name", ["~", "~/log"])
def test_a_home_directory_is_not_taken_for_a_directory_called_tilde(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a shell knows ~: the root would be made in the working directory, to be removed by `rm -r ~`."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequestError, match=r"ILLEGAL_ROOT.*expanduser"):
        open_store(name, create=True)
    assert not list(tmp_path.iterdir())
    open_store("./~", create=True)
    assert (tmp_path / "~").is_dir()


@pytest.mark.parametrize("name", ["simplecache::s3://b/log", "filecache::abfs::s3://b/log"])
def test_a_chain_of_fsspec_is_not_taken_for_a_directory(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidRequestError, match=r"ILLEGAL_ROOT.*a chain of file systems"):
        open_store(name, create=True)
    assert not list(tmp_path.iterdir())
    open_store("a::b", create=True)
    assert (tmp_path / "a::b").is_dir()


def test_missing_root(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="create=True"):
        open_store(tmp_path / "none")
    open_store(tmp_path / "deep" / "none", create=True)
    assert (tmp_path / "deep" / "none").is_dir()


def test_root_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for create in (False, True):
        with pytest.raises(InvalidRequestError, match="expected a directory"):
            open_store(tmp_path / "file", create=create)


@pytest.mark.parametrize("url", ["nosuch://n/x", "S3X://bucket"])
def test_other_stores_are_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="fsspec cannot open") as raised:
        open_store(url, create=True)
    assert url.split(":", maxsplit=1)[0].lower() in str(raised.value)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("gs://bucket/a/b/", "gs://bucket/a/b"),
        ("GCS://bucket", "gs://bucket"),
        ("az://c/a", "az://c/a"),
        ("abfs://c/a", "az://c/a"),
        ("abfs://c@Acct.blob.core.windows.net/a/", "abfss://c@acct.dfs.core.windows.net/a"),
        ("abfss://c@acct.dfs.core.chinacloudapi.cn", "abfss://c@acct.dfs.core.chinacloudapi.cn"),
    ],
)
def test_urls_of_buckets(given: str, url: str) -> None:
    options = {"account_name": "acct"} if "://c/" in given else {}
    assert open_store(given, storage_options=options).url == url


@pytest.mark.parametrize(
    "url",
    [
        "gs://",
        "gs://user@bucket/x",
        "gs://b/../x",
        "abfss://c@acct.evil.example/x",
        "abfss://c@acct.dfs.core.windows.net.evil.example/x",
        "az://c:443/x",
        "az://c/x?sig=secret",
    ],
)
def test_urls_that_are_no_buckets(url: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        open_store(url)
    assert raised.value.code in {"ILLEGAL_ROOT", "ILLEGAL_FILE_NAME"}
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("scheme", ["s3", "s3a", "s3n", "S3"])
def test_s3_urls(scheme: str) -> None:
    assert open_store(f"{scheme}://bucket/a/b/").url == "s3://bucket/a/b"
    assert open_store(f"{scheme}://bucket").url == "s3://bucket"


@pytest.mark.parametrize(
    "url", ["s3://", "s3:/bucket/x", "s3:///x", "s3://key:secret@bucket/x", "s3://b/x?y=1", "s3://b/../x"]
)
def test_malformed_s3_urls_are_not_quoted(url: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("bucket", ["b--usw2-az1--x-s3", "p--usw2-az1--xa-s3", "abc.mrap", "x--ol-s3"])
def test_buckets_that_cannot_hold_a_root_are_refused_by_name(bucket: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"UNSUPPORTED_STORE.*general purpose bucket of one Region"):
        open_store(f"s3://{bucket}/x")
    open_store(f"s3://{bucket}x/x")


def test_s3_without_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "botocore", None)
    with pytest.raises(InvalidRequestError, match=r"S3_NOT_INSTALLED.*pip install 'sparklog\[s3\]'"):
        open_store("s3://bucket/x")


def test_storage_options_of_a_directory(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="expected none") as raised:
        open_store(tmp_path, storage_options={"secret": "hush"})
    assert "hush" not in str(raised.value)


@pytest.mark.parametrize("url", ["", "a\0b", "file://host/x", "file:///x?y=1", "file:///x#y"])
def test_malformed_roots(url: str) -> None:
    with pytest.raises(InvalidRequestError):
        open_store(url, create=True)


def test_memory_stores_are_shared_by_name() -> None:
    with pytest.raises(NotFoundError):
        open_store("memory://test-opening")
    store = open_store("memory://test-opening", create=True)
    assert isinstance(store, MemoryStore)
    assert open_store("memory://test-opening") is store
    assert store.url == "memory://test-opening"


def test_exports() -> None:
    assert sparklog.storage.__all__ == [
        "AdvisoryLock",
        "AppendFile",
        "BytesLike",
        "Hold",
        "IndefinitePutError",
        "LocalStore",
        "MemoryStore",
        "ReadFile",
        "Store",
        "StoreTraits",
        "StoredFile",
        "open_store",
        "validate_name",
    ]
