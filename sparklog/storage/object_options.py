"""Options that all object stores share, and parsing options under the names that users know.

Invariants: credentials appear in no repr and no error message; options are picklable, to be sent to Spark's
    executors. They are never stored under a root.
Not here: one store's options (s3_options.py, gcs.py, azure.py); names of Spark's options (spark/roots.py).
"""

import dataclasses
import difflib
import urllib.parse
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Self

from sparklog.errors import InvalidRequestError

MIB = 1 << 20
_MAY_BE_ZERO = {"refresh_interval_ms", "cache_bytes"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOptions:
    """How to reach an object store.

    Fields:
        endpoint_url: of another server with the same protocol, "http://127.0.0.1:8333".
        verify: check the server's certificate, or against the certificates in this file; None: true.
        connect_timeout, read_timeout: seconds, for one attempt.
        retry_timeout: seconds for which a request is retried while the store does not answer, or is busy.
            Longer: longer outages are survived; shorter: errors come sooner.
        max_concurrency: concurrent requests, per process and root.
        refresh_interval_ms: the minimum time between two polls for new commits; 0: no minimum.
        cache_dir: the local directory for cached indexes; None: sparklog in $XDG_CACHE_HOME or ~/.cache.
        cache_bytes: the size of that cache; 0: no cache.
    """

    # What messages call the store's options, and the page that lists them.
    store: ClassVar[str] = "an object store"
    page: ClassVar[str] = "docs/object-stores.md"
    # Fields with a value that no message may show.
    secret_fields: ClassVar[tuple[str, ...]] = ()
    # Fields that are true, false, or None.
    flags: ClassVar[tuple[str, ...]] = ()

    endpoint_url: str | None = None
    verify: str | bool | None = None
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
        return tuple(value for name in self.secret_fields if (value := getattr(self, name)))

    @classmethod
    def known(cls) -> list[str]:
        """Return the names of the options."""
        return [field.name for field in dataclasses.fields(cls)]

    @classmethod
    def of(cls, values: Mapping[str, Any], also: Collection[str] = ()) -> Self:
        """Return options of texts or typed values.

        Args:
            also: other names that are known, for hints.

        Raises:
            InvalidRequestError: an unknown or malformed option. Values are never quoted.
        """
        for name in values:
            if name not in cls.known():
                raise unknown(cls, repr(name), name, [*cls.known(), *also])
        fields = {field.name: field for field in dataclasses.fields(cls)}
        return cls(**{name: cls.typed(name, value, fields[name].default) for name, value in values.items()})

    @classmethod
    def typed(cls, name: str, value: Any, default: Any) -> Any:
        """Return an option's value in the type of its default. Raises InvalidRequestError."""
        if name == "verify":
            return BOOLEANS.get(str(value).lower(), str(value))
        if isinstance(default, bool) or name in cls.flags:
            return as_bool(cls, name, value)
        if isinstance(default, int | float):
            return _as_number(cls, name, value, default)
        if not isinstance(value, str):
            raise invalid(cls, name, f"found a {type(value).__name__}, expected text")
        return _endpoint(cls, value) if name == "endpoint_url" else value


def hide(text: str, options: ObjectOptions) -> str:
    """Return `text` without credentials, in case a library has quoted them."""
    for secret in options.secrets:
        text = text.replace(secret, "***")
    return text


def from_environment(names: Mapping[str, str], environment: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the options that variables set; `names` maps a variable to an option, the first has priority."""
    found: dict[str, Any] = {}
    for variable, name in names.items():
        if environment and environment.get(variable):
            found.setdefault(name, environment[variable])
    return found


def as_mapping(options: type[ObjectOptions], value: object, where: str) -> Mapping[str, Any]:
    """Raises InvalidRequestError."""
    if not isinstance(value, Mapping):
        raise invalid(options, where, f"found a {type(value).__name__}, expected a dict")
    return value


def as_bool(options: type[ObjectOptions], name: str, value: object) -> bool:
    """Raises InvalidRequestError."""
    if str(value).lower() not in BOOLEANS:
        raise invalid(options, name, "expected true or false")
    return BOOLEANS[str(value).lower()]


def _as_number(options: type[ObjectOptions], name: str, value: Any, default: float) -> float:
    try:
        number = type(default)(value)
    except (TypeError, ValueError):
        raise invalid(options, name, "expected a number") from None
    if not (0 if name in _MAY_BE_ZERO else 1e-3) <= number < 1e12:
        raise invalid(options, name, "expected a positive number")
    return number


def _endpoint(options: type[ObjectOptions], url: str) -> str:
    url = url if "://" in url else f"https://{url}"  # Hadoop's endpoints have no scheme
    parts = urllib.parse.urlsplit(url)
    if "@" in parts.netloc:
        raise invalid(options, "endpoint_url", "found a user name or password in it")
    if parts.query or parts.fragment:
        raise invalid(options, "endpoint_url", "found a query or fragment in it")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not _has_legal_port(parts):
        raise invalid(options, "endpoint_url", "expected http://host:port or https://host")
    return url


def _has_legal_port(parts: urllib.parse.SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:
        return False


BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def invalid(options: type[ObjectOptions], name: str, problem: str) -> InvalidRequestError:
    """Return the error for a malformed option."""
    return InvalidRequestError(
        "INVALID_OPTION",
        f"storage option {name}: {problem}",
        fix=f"Correct the option; see {options.page}",
    )


def unknown(
    options: type[ObjectOptions], shown: str, name: str, known: Collection[str]
) -> InvalidRequestError:
    """Return the error for an unknown option."""
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {nearest[0]}?" if nearest else ""
    return InvalidRequestError(
        "UNKNOWN_OPTION",
        f"{options.store} root has no storage option {shown}{hint}",
        fix=f"Correct or remove the option; {options.page} lists them",
    )
