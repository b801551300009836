"""Which roots may be opened: those under one of a list of prefixes, for who lets others name roots.

    SPARKLOG_ALLOWED_ROOTS=s3://logs/team-a,file:///data/logs      for every process that has it

A root may be named by an option, by SQL, or by the answer of a broker, and is opened with the credentials
that the process has. Several lists may hold at once, the environment's and a query's: a root must then be
under each of them, so that an option can narrow what an administrator allows, and never widen it.

Invariants: what is compared is where the store would go, not what was written: a directory by its absolute
    path with links followed, a bucket and key as they are sent. Whole parts are compared, so s3://b/log does
    not allow s3://b/logs. What cannot be understood is not allowed.
Not here: who asks (client/log.py, client/broker_root.py). What a process's own code does with its
    credentials is not bounded by a variable that it can change.
Concurrency: pure, but for the links that are looked at: who may change them beneath an allowed prefix may
    lead out of it.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.redaction import shown
from sparklog.storage.root_urls import S3_SCHEMES, local_path, memory_name, parse_s3_url, scheme_of

OPTION = "allowedRoots"
VARIABLE = "SPARKLOG_ALLOWED_ROOTS"


@dataclass(frozen=True, slots=True)
class AllowedRoots:
    """One list; picklable.

    Fields:
        source: who said so, for messages.
        prefixes: as they were written.
    """

    source: str
    prefixes: tuple[str, ...]


def parse_allowed_roots(given: str | Iterable[str], source: str = OPTION) -> AllowedRoots:
    """A list of paths and URLs, separated by commas; a comma in a path is %2C in a file:// URL.

    Spaces around each are dropped. What is in a list already is not separated further.

    Raises:
        InvalidRequestError: INVALID_OPTION, none is named, or one cannot be a root or is a relative path.
    """
    parts = given.split(",") if isinstance(given, str) else given
    prefixes = tuple(part.strip() for part in parts if part.strip())
    if not prefixes:
        raise _malformed(source, "found no root, expected at least one")
    for prefix in prefixes:
        if not scheme_of(prefix) and not prefix.startswith("/"):
            raise _malformed(source, f"found {shown(OPTION, prefix)}, expected an absolute path or a URL")
        try:
            _place(prefix)
        except SparklogError as error:
            raise _malformed(source, f"{shown(OPTION, prefix)}: {error.message}") from None
    return AllowedRoots(source, prefixes)


def allowed_by_environment(environment: Mapping[str, str]) -> tuple[AllowedRoots, ...]:
    """The list of SPARKLOG_ALLOWED_ROOTS, if it is set. Set to nothing is an error, not permission."""
    text = environment.get(VARIABLE)
    return () if text is None else (parse_allowed_roots(text, VARIABLE),)


def validate_allowed(root: str | os.PathLike[str], allowed: Iterable[AllowedRoots]) -> None:
    """Refuse a root that one of the lists does not hold. Nothing of the root is read.

    Raises:
        InvalidRequestError: ROOT_NOT_ALLOWED; or the root is none that could be opened.
    """
    text = os.fspath(root)
    for one in allowed:
        found = _place(text)
        if not any(_is_within(found, _place(prefix)) for prefix in one.prefixes):
            raise InvalidRequestError(
                "ROOT_NOT_ALLOWED",
                f"root {shown('root', text)}: found {shown('root', _text(found))}, expected a place under "
                f"one of {', '.join(shown('root', prefix) for prefix in one.prefixes)} ({one.source})",
                fix=f"Name a root that is allowed, or have its place added to {one.source}; if a broker "
                "named the root, find out whether it is the broker that is meant",
            )


def _place(root: str) -> tuple[str, ...]:
    """Scheme, and the parts of where the store would go."""
    scheme = scheme_of(root)
    if scheme in S3_SCHEMES:
        bucket, prefix = parse_s3_url(root)
        return ("s3", bucket, *(prefix.split("/") if prefix else ()))
    if scheme in {"", "file"}:
        real = os.path.realpath(local_path(root))
        return ("file", *(part for part in real.split("/") if part))
    if scheme == "memory":
        return ("memory", memory_name(root))
    raise InvalidRequestError(
        "UNSUPPORTED_STORE",
        f"root {shown('root', root)}: the scheme {scheme!r} is not supported",
        fix="Use a directory (a path, or file:///path) or s3://bucket/prefix",
    )


def _is_within(place: tuple[str, ...], prefix: tuple[str, ...]) -> bool:
    return place[: len(prefix)] == prefix


def _text(place: tuple[str, ...]) -> str:
    scheme, *parts = place
    return f"/{'/'.join(parts)}" if scheme == "file" else f"{scheme}://{'/'.join(parts)}"


def _malformed(source: str, problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_OPTION",
        f"{source}: {problem}",
        fix=f"Write {source} as absolute paths and URLs separated by commas: s3://bucket/prefix,/data/logs",
    )
