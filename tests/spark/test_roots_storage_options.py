"""Options that say how to reach an s3:// root: which are taken, and where they do not show."""

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.spark.datasource import SparklogDataSource
from sparklog.spark.options import parse_sink_options, parse_source_options
from sparklog.spark.roots import StorageOptions, storage_name

URL = {"path": "s3://bucket/x", "subscribe": "t"}


def storage(**options: str) -> dict[str, str] | None:
    given = {**URL, **options}
    found = parse_source_options(given, streaming=False).storage
    sink = {name: value for name, value in given.items() if name != "subscribe"}
    assert parse_sink_options(sink, streaming=False).storage == found
    return found.to_dict()


@pytest.mark.parametrize(
    ("option", "value", "name"),
    [
        ("s3.endpoint_url", "http://127.0.0.1:1", "endpoint_url"),
        ("S3.Key", "AKID", "key"),
        ("secret", "hush", "secret"),
        ("token", "hush", "token"),
        ("fs.s3a.access.key", "AKID", "key"),
        ("fs.s3a.endpoint", "127.0.0.1:1", "endpoint_url"),
        ("fs.s3a.path.style.access", "true", "path_style"),
        ("s3.read_timeout", "2.5", "read_timeout"),
        ("s3.cache_bytes", "0", "cache_bytes"),
    ],
)
def test_names_of_s3fs_and_of_hadoop(option: str, value: str, name: str) -> None:
    assert storage(**{option: value}) == {name: value}


ACCOUNT = "acct.dfs.core.windows.net"
AZURE = f"abfss://c@{ACCOUNT}/log"


@pytest.mark.parametrize(
    ("root", "option", "value", "expected"),
    [
        ("gs://b/x", "gs.token", "anon", {"token": "anon"}),
        ("gs://b/x", "fs.gs.auth.type", "APPLICATION_DEFAULT", {"token": "google_default"}),
        ("gs://b/x", "fs.gs.auth.type", "UNAUTHENTICATED", {"token": "anon"}),
        ("gs://b/x", "fs.gs.auth.type", "SERVICE_ACCOUNT_JSON_KEYFILE", None),
        ("gs://b/x", "fs.gs.auth.service.account.json.keyfile", "/keys/k", {"token": "/keys/k"}),
        ("gs://b/x", "fs.gs.storage.root.url", "http://h:1", {"endpoint_url": "http://h:1"}),
        (AZURE, "azure.account_key", "aHVzaA==", {"account_key": "aHVzaA=="}),
        (AZURE, "account_key", "aHVzaA==", {"account_key": "aHVzaA=="}),
        (AZURE, "fs.azure.account.key", "aHVzaA==", {"account_key": "aHVzaA=="}),
        (AZURE, f"fs.azure.account.key.{ACCOUNT}", "aHVzaA==", {"account_key": "aHVzaA=="}),
        (AZURE, f"fs.azure.sas.fixed.token.{ACCOUNT}", "sv=1&sig=hush", {"sas_token": "sv=1&sig=hush"}),
        (AZURE, f"fs.azure.account.auth.type.{ACCOUNT}", "OAuth", None),
        (AZURE, "fs.azure.account.oauth2.client.id", "app", {"client_id": "app"}),
        (
            AZURE,
            f"fs.azure.account.oauth2.client.endpoint.{ACCOUNT}",
            "https://login.microsoftonline.com/tenant-1/oauth2/token",
            {"tenant_id": "tenant-1"},
        ),
        ("sftp://h/x", "fsspec.username", "me", {"username": "me"}),
        ("hdfs://nn/x", "hdfs.user", "etl", {"user": "etl"}),
        ("s3://b/x", "storage.protocol", "fsspec", {"protocol": "fsspec"}),
    ],
)
def test_names_of_gcsfs_adlfs_and_of_hadoop(
    root: str, option: str, value: str, expected: dict[str, str] | None
) -> None:
    assert storage(path=root, **{option: value}) == expected


@pytest.mark.parametrize(
    ("root", "option", "value", "code"),
    [
        ("gs://b/x", "fs.gs.auth.type", "ACCESS_TOKEN_PROVIDER", "not a value that sparklog can follow"),
        ("gs://b/x", "gs.tocken", "hush", "did you mean token"),
        (AZURE, "fs.azure.account.auth.type", "Custom", "not a value that sparklog can follow"),
        (AZURE, "fs.azure.account.key.other.dfs.core.windows.net", "hush", "is of account other"),
        (AZURE, "azure.account_key", "hush!", "expected base64"),
        (AZURE, "azure.secret", "hush", "UNKNOWN_OPTION"),
        ("hdfs://nn/x", "hdfs.kerberos", "true", "storage option kerberos: not supported"),
        ("s3://b/x", "storage.protocol", "hdfs", "expected fsspec"),
    ],
)
def test_what_other_stores_do_not_take(root: str, option: str, value: str, code: str) -> None:
    with pytest.raises(InvalidRequestError, match=code) as raised:
        storage(path=root, **{option: value})
    assert "hush" not in str(raised.value)


def test_without_any() -> None:
    assert storage() is None
    assert storage_name("subscribe") is None


@pytest.mark.parametrize("path", ["/data/x", "file:///data/x"])
def test_an_unsafe_file_system_is_allowed_on_executors_too(path: str) -> None:
    assert storage(path=path, allow_unsafe_filesystem="True") == {"allow_unsafe_filesystem": "true"}
    assert storage(path=path, ALLOW_UNSAFE_FILESYSTEM="false") == {"allow_unsafe_filesystem": "false"}


@pytest.mark.parametrize(
    ("path", "more"), [("s3://bucket/x", {}), ("/data/x", {"s3.key": "AKID"}), ("/data/x", {"key": "AKID"})]
)
def test_that_option_is_for_directories_alone(path: str, more: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match="is for a directory"):
        storage(path=path, allow_unsafe_filesystem="true", **more)
    with pytest.raises(InvalidRequestError, match="expected true or false"):
        storage(path="/data/x", allow_unsafe_filesystem="perhaps")


def test_streams_look_for_news_five_times_a_second_unless_told_otherwise() -> None:
    def refresh(path: str, **options: str) -> object:
        given = {**URL, "path": path, **options}
        values = parse_source_options(given, streaming=True).storage.to_dict() or {}
        return values.get("refresh_interval_ms")

    assert refresh("s3://bucket/x") == "200"
    assert refresh("s3a://bucket/x", **{"s3.refresh_interval_ms": "50"}) == "50"
    assert refresh("/data/x") is None
    assert refresh("gs://b/x") == "200"
    assert refresh(AZURE, **{"azure.refresh_interval_ms": "50"}) == "50"


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("s3.endpoint", "http://h", "UNKNOWN_OPTION.*did you mean endpoint_url"),
        ("fs.s3a.fast.upload", "true", "UNKNOWN_OPTION"),
        ("s3.anon", "maybe", "INVALID_OPTION.*anon"),
        ("s3.read_timeout", "-1", "INVALID_OPTION.*read_timeout"),
        ("s3.endpoint_url", "http://me:hush@host", "INVALID_OPTION.*user name or password"),
    ],
)
def test_what_is_not_known_or_malformed_is_refused_without_being_quoted(
    option: str, value: str, code: str
) -> None:
    with pytest.raises(InvalidRequestError, match=code) as raised:
        storage(**{option: value})
    assert "hush" not in str(raised.value)


def test_they_show_in_no_repr() -> None:
    options = {**URL, "s3.key": "AKID", "s3.secret": "hush", "s3.endpoint_url": "http://127.0.0.1:1"}
    shown = [
        repr(parse_source_options(options, streaming=True)),
        repr(StorageOptions((("secret", "hush"), ("key", "AKID")))),
        repr(SparklogDataSource(options)),
    ]
    for text in shown:
        assert "hush" not in text
        assert "AKID" not in text
