"""Options of an S3 store: s3fs's names, where values come from, and what is never shown."""

import copy
from typing import Any

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.storage.object_options import hide
from sparklog.storage.s3_options import S3Options, parse_storage_options


def test_names_of_s3fs() -> None:
    options = parse_storage_options(
        {
            "key": "AKID",
            "secret": "hush",
            "token": None,
            "endpoint_url": "http://127.0.0.1:8333",
            "client_kwargs": {"region_name": "eu-west-1", "verify": "/etc/ca.pem"},
            "config_kwargs": {"connect_timeout": 2, "s3": {"addressing_style": "virtual"}},
        }
    )
    assert options == S3Options(
        key="AKID",
        secret="hush",
        endpoint_url="http://127.0.0.1:8333",
        region="eu-west-1",
        verify="/etc/ca.pem",
        connect_timeout=2.0,
        path_style=False,
    )


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("anon", "true", True),
        ("use_ssl", "false", False),
        ("path_style", "1", True),
        ("verify", "no", False),
        ("read_timeout", "2.5", 2.5),
        ("max_concurrency", "3", 3),
        ("cache_bytes", "0", 0),
        ("refresh_interval_ms", "0", 0),
        ("endpoint_url", "host:9000", "https://host:9000"),
    ],
)
def test_text_as_spark_gives_it(name: str, text: str, value: object) -> None:
    assert getattr(parse_storage_options({name: text}), name) == value


@pytest.mark.parametrize(
    ("style", "value"), [("path", True), ("virtual", False), ("auto", False), (None, None)]
)
def test_addressing_styles_of_botocore(style: str | None, value: bool | None) -> None:
    options = parse_storage_options({"config_kwargs": {"s3": {"addressing_style": style}}})
    assert options.path_style is value


def test_what_is_given_beats_the_environment() -> None:
    environment = {
        "FSSPEC_S3_KEY": "env",
        "FSSPEC_S3_SECRET": "env",
        "SPARKLOG_CACHE_DIR": "/cache",
        "X": "y",
    }
    options = parse_storage_options({"key": "given"}, environment)
    assert (options.key, options.secret, options.cache_dir) == ("given", "env", "/cache")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"endpoint": "x"}, "did you mean endpoint_url"),
        ({"nonsense": "hush"}, "no storage option 'nonsense'"),
        ({"client_kwargs": {"nonsense": "hush"}}, "client_kwargs"),
        ({"client_kwargs": "hush"}, "expected a dict"),
        ({"config_kwargs": "hush"}, "expected a dict"),
        ({"config_kwargs": {"s3": "hush"}}, "expected a dict"),
        ({"config_kwargs": {"s3": {"addressing_style": "hush"}}}, "expected one of path, virtual, auto"),
        ({"config_kwargs": {"s3": {"addressing_style": ["hush"]}}}, "expected one of path, virtual, auto"),
        ({"config_kwargs": {"s3": {"adressing_style": "hush"}}}, "did you mean addressing_style"),
        ({"config_kwargs": {"s3": {"use_accelerate_endpoint": "hush"}}}, "use_accelerate_endpoint"),
        ({"read_timeout": "hush"}, "expected a number"),
        ({"read_timeout": 0}, "positive"),
        ({"max_concurrency": float("nan")}, "expected a"),
        ({"anon": "hush"}, "true or false"),
        ({"secret": 5}, "found a int"),
        ({"endpoint_url": "ftp://hush"}, "expected http"),
        ({"endpoint_url": "http://key:hush@host"}, "user name or password"),
        ({"endpoint_url": "http://host:hush"}, "expected http"),
    ],
)
def test_wrong_options_are_named_and_not_quoted(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as raised:
        parse_storage_options(given)
    assert "hush" not in str(raised.value)


def test_credentials_show_nowhere() -> None:
    options = parse_storage_options({"key": "AKID", "secret": "hush", "token": "whisper"})
    for text in (repr(options), str(options), f"{options}"):
        assert not {"AKID", "hush", "whisper"} & set(text.split("'"))
    assert hide("key AKID, hush and whisper", options) == "key ***, *** and ***"
    assert copy.deepcopy(options) == options
