"""Options of an S3 store, under the names of s3fs, pandas and Spark.

    sparklog.open("s3://bucket/log", storage_options={"endpoint_url": "http://...", "profile": "dev"})

Missing options come from botocore's sources: AWS_ACCESS_KEY_ID, AWS_PROFILE, AWS_ENDPOINT_URL, the shared
configuration files, instance roles; and from fsspec's variables, FSSPEC_S3_KEY and so on.

Invariants: `key`, `secret` and `token` appear in no repr and no error message; options are picklable, to be
    sent to Spark's executors. They are never stored under a root.
Not here: clients (s3_client.py); names of Spark's options (spark/roots.py).
Sources: s3fs.S3FileSystem; fsspec.config; botocore's environment variables.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from sparklog.storage.object_options import (
    ObjectOptions,
    as_mapping,
    from_environment,
    invalid,
    unknown,
)

_NESTED = ("client_kwargs", "config_kwargs")
# s3fs's nested dictionaries, flattened.
_CLIENT_KWARGS = {
    "aws_access_key_id": "key",
    "aws_secret_access_key": "secret",
    "aws_session_token": "token",
    "endpoint_url": "endpoint_url",
    "region_name": "region",
    "use_ssl": "use_ssl",
    "verify": "verify",
}
_CONFIG_KWARGS = {
    "connect_timeout": "connect_timeout",
    "max_pool_connections": "max_concurrency",
    "read_timeout": "read_timeout",
    "region_name": "region",
}
_STYLES = ("path", "virtual", "auto")
_ALIASES = {"region_name": "region", "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
_ENVIRONMENT = {
    f"FSSPEC_S3_{name.upper()}": name
    for name in ("key", "secret", "token", "anon", "endpoint_url", "profile", "region")
} | {"SPARKLOG_CACHE_DIR": "cache_dir"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class S3Options(ObjectOptions):
    """How to reach an S3 store. See ObjectOptions.

    Fields:
        key, secret, token: credentials; None: botocore's sources.
        anon: send no credentials.
        profile, region: as in AWS's configuration files.
        path_style: bucket in the path, not in the host name; None: only with an endpoint_url.
    """

    store: ClassVar[str] = "an S3"
    page: ClassVar[str] = "docs/s3.md"
    secret_fields: ClassVar[tuple[str, ...]] = ("secret", "token", "key")
    flags: ClassVar[tuple[str, ...]] = ("path_style",)

    key: str | None = dataclasses.field(default=None, repr=False)
    secret: str | None = dataclasses.field(default=None, repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    anon: bool = False
    profile: str | None = None
    region: str | None = None
    use_ssl: bool = True
    path_style: bool | None = None


def parse_storage_options(
    given: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None
) -> S3Options:
    """Parse the options of an S3 store.

    Args:
        given: in s3fs's format, {"key": ..., "client_kwargs": {"region_name": ...}}.
        environment: for fsspec's variables; `given` overrides them.

    Raises:
        InvalidRequestError: an unknown or malformed option. Values are never quoted.
    """
    values = from_environment(_ENVIRONMENT, environment)
    for name, value in (given or {}).items():
        if value is None:
            continue
        if name == "client_kwargs":
            values.update(_nested(value, _CLIENT_KWARGS, name))
        elif name == "config_kwargs":
            rest = dict(as_mapping(S3Options, value, name))
            values.update(_addressing(rest.pop("s3", {})))
            values.update(_nested(rest, _CONFIG_KWARGS, name))
        else:
            values[_ALIASES.get(name, name)] = value
    return S3Options.of(values, _NESTED)


def _nested(value: object, names: Mapping[str, str], where: str) -> dict[str, Any]:
    given = as_mapping(S3Options, value, where)
    for name in given:
        if name not in names:
            raise unknown(S3Options, f"{where}[{name!r}]", name, names)
    return {names[name]: one for name, one in given.items() if one is not None}


def _addressing(value: object) -> dict[str, Any]:
    where = "config_kwargs['s3']"
    given = _nested(value, {"addressing_style": "path_style"}, where)
    for style in given.values():
        if style not in _STYLES:
            raise invalid(S3Options, f"{where}['addressing_style']", f"expected one of {', '.join(_STYLES)}")
    return {name: style == "path" for name, style in given.items()}
