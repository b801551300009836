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
import difflib
import urllib.parse
from collections.abc import Mapping
from typing import Any

from sparklog.errors import InvalidRequestError

MIB = 1 << 20
_MAY_BE_ZERO = {"refresh_interval_ms", "cache_bytes"}
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
class S3Options:
    """How to reach an object store.

    Fields:
        key, secret, token: credentials; None: botocore's sources.
        anon: send no credentials.
        endpoint_url: of a store other than AWS, "http://127.0.0.1:8333".
        profile, region: as in AWS's configuration files.
        path_style: bucket in the path, not in the host name; None: only with an endpoint_url.
        connect_timeout, read_timeout: seconds, for one attempt.
        retry_timeout: seconds for which a request is retried while the store does not answer, or is busy.
            Longer: longer outages are survived; shorter: errors come sooner.
        max_concurrency: concurrent requests, per process and root.
        refresh_interval_ms: the minimum time between two polls for new commits; 0: no minimum.
        cache_dir: the local directory for cached indexes; None: sparklog in $XDG_CACHE_HOME or ~/.cache.
        cache_bytes: the size of that cache; 0: no cache.
    """

    key: str | None = dataclasses.field(default=None, repr=False)
    secret: str | None = dataclasses.field(default=None, repr=False)
    token: str | None = dataclasses.field(default=None, repr=False)
    anon: bool = False
    endpoint_url: str | None = None
    profile: str | None = None
    region: str | None = None
    use_ssl: bool = True
    verify: str | bool | None = None
    path_style: bool | None = None
    connect_timeout: float = 5.0
    read_timeout: float = 30.0
    retry_timeout: float = 120.0
    max_concurrency: int = 10
    refresh_interval_ms: int = 0
    cache_dir: str | None = None
    cache_bytes: int = 256 * MIB

    @property
    def secrets(self) -> tuple[str, ...]:
        """Return the values that must not appear in messages."""
        return tuple(value for value in (self.secret, self.token, self.key) if value)


_FIELDS = {field.name: field for field in dataclasses.fields(S3Options)}


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
    values: dict[str, Any] = {}
    for variable, name in _ENVIRONMENT.items():
        if environment and environment.get(variable):
            values[name] = environment[variable]
    for name, value in (given or {}).items():
        if value is None:
            continue
        if name == "client_kwargs":
            values.update(_nested(value, _CLIENT_KWARGS, name))
        elif name == "config_kwargs":
            rest = dict(_as_mapping(value, name))
            values.update(_addressing(rest.pop("s3", {})))
            values.update(_nested(rest, _CONFIG_KWARGS, name))
        else:
            values[_known(_ALIASES.get(name, name))] = value
    return S3Options(**{name: _typed(name, value) for name, value in values.items()})


def hide(text: str, options: S3Options) -> str:
    """Return `text` without credentials, in case a library has quoted them."""
    for secret in options.secrets:
        text = text.replace(secret, "***")
    return text


def _nested(value: object, names: Mapping[str, str], where: str) -> dict[str, Any]:
    given = _as_mapping(value, where)
    for name in given:
        if name not in names:
            raise _unknown(f"{where}[{name!r}]", name, names)
    return {names[name]: one for name, one in given.items() if one is not None}


def _addressing(value: object) -> dict[str, Any]:
    where = "config_kwargs['s3']"
    given = _nested(value, {"addressing_style": "path_style"}, where)
    for style in given.values():
        if style not in _STYLES:
            raise _invalid(f"{where}['addressing_style']", f"expected one of {', '.join(_STYLES)}")
    return {name: style == "path" for name, style in given.items()}


def _as_mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise _invalid(where, f"found a {type(value).__name__}, expected a dict")
    return value


def _known(name: str) -> str:
    if name not in _FIELDS:
        raise _unknown(repr(name), name, [*_FIELDS, "client_kwargs", "config_kwargs"])
    return name


def _typed(name: str, value: Any) -> Any:
    if name == "verify":
        return _as_bool(value) if str(value).lower() in _BOOLEANS else str(value)
    default = _FIELDS[name].default
    if name == "path_style" or isinstance(default, bool):
        if str(value).lower() not in _BOOLEANS:
            raise _invalid(name, "expected true or false")
        return _as_bool(value)
    if isinstance(default, int | float):
        try:
            number = type(default)(value)
        except (TypeError, ValueError):
            raise _invalid(name, "expected a number") from None
        if not (0 if name in _MAY_BE_ZERO else 1e-3) <= number < 1e12:
            raise _invalid(name, "expected a positive number")
        return number
    if not isinstance(value, str):
        raise _invalid(name, f"found a {type(value).__name__}, expected text")
    return _endpoint(value) if name == "endpoint_url" else value


def _endpoint(url: str) -> str:
    url = url if "://" in url else f"https://{url}"  # Hadoop's endpoints have no scheme
    parts = urllib.parse.urlsplit(url)
    if "@" in parts.netloc:
        raise _invalid("endpoint_url", "found a user name or password in it")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _has_legal_port(parts):
        raise _invalid("endpoint_url", "expected http://host:port or https://host")
    return url


def _has_legal_port(parts: urllib.parse.SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def _as_bool(value: object) -> bool:
    return _BOOLEANS[str(value).lower()]


def _invalid(name: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_OPTION", f"storage option {name}: {problem}", fix="Correct the option; see docs/s3.md"
    )


def _unknown(shown: str, name: str, known: Any) -> InvalidRequestError:
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return InvalidRequestError(
        "UNKNOWN_OPTION",
        f"an S3 root has no storage option {shown}{hint}",
        fix="Correct or remove the option; docs/s3.md lists them",
    )
