"""Rules for roots: the places where a root may be, and the cluster id that it must have.

A process that takes a root's location from others (a broker's answer, an option, SQL) can restrict it. The
place limits what a hostile party can have us open. The cluster id detects mistakes: another root mounted at
the same place, another broker at the same address. It is not secret, so it does not stop an attacker.

Invariants: the place is checked before anything is read there. With a cluster id, no root is created.
Not here: reading a root's cluster id (documents/properties.py).
"""

import os
import re
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import InvalidRequestError, SparklogError, shown
from sparklog.storage.base import validate_name

# --- root urls ---------------------------------------------------------------------------------------
#
# Parsing a root's text: a scheme, and the rest in the form that the store takes.
#
# Invariants: all code that needs a root's location uses these functions, so that it agrees with opening.
# Not here: opening (opening.py); the content of a bucket (object_store.py). This needs no client library.


S3_SCHEMES = {"s3", "s3a", "s3n"}
GS_SCHEMES = {"gs", "gcs"}
AZURE_SCHEMES = {"abfs", "abfss", "az"}
HDFS_SCHEMES = {"hdfs", "webhdfs", "swebhdfs"}
# The storage option that opens a URL through fsspec, though it has a store of its own.
PROTOCOL = "protocol"
_CHAIN = re.compile(r"\w+::(?:\w+::)*\w+:/")  # of fsspec: simplecache::s3://bucket/prefix
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_UNSUITABLE = {
    "--x-s3": "a directory bucket (S3 Express One Zone), which lists neither in order nor from a name on",
    "--xa-s3": "an access point of a directory bucket, which lists neither in order nor from a name on",
    ".mrap": "a Multi-Region Access Point over replicated buckets, none of which is the log in order",
    "--ol-s3": "an Object Lambda Access Point, which may change what is read",
}
_URL = re.compile(r"s3[an]?://([^/?#@:]+)(?:/([^?#]*))?", re.IGNORECASE)


_GS_URL = re.compile(r"gc?s://([^/?#@:]+)(?:/([^?#]*))?", re.IGNORECASE)
_AZURE_URL = re.compile(r"(?:abfss?|az)://([^/?#@:]+)(?:@([^/?#@:]+))?(?:/([^?#]*))?", re.IGNORECASE)
# The hosts of Microsoft's clouds: credentials are sent to no other that a URL names.
_AZURE_HOST = re.compile(
    r"([a-z0-9]{3,24})\.(?:dfs|blob)\.(core\.windows\.net|core\.chinacloudapi\.cn|core\.usgovcloudapi\.net)",
    re.IGNORECASE,
)


def store_kind(root: str, options: Mapping[str, object] | None = None) -> str:
    """Return the kind of store that opens a root: directory, memory, s3, gs, azure, hdfs or fsspec."""
    scheme = scheme_of(root)
    if (options or {}).get(PROTOCOL) is not None:
        return "fsspec"
    kinds = {"s3": S3_SCHEMES, "gs": GS_SCHEMES, "azure": AZURE_SCHEMES, "memory": {"memory"}}
    kinds["hdfs"] = HDFS_SCHEMES
    kinds["directory"] = {"", "file"}
    return next((kind for kind, schemes in kinds.items() if scheme in schemes), "fsspec")


def scheme_of(root: str) -> str:
    """Return the scheme in lower case; empty for a plain path."""
    match = _SCHEME.match(root)
    return match[1].lower() if match else ""


def local_path(root: str) -> str:
    """Return the absolute path of a plain path or file:// URL; links are not followed.

    Raises:
        InvalidRequestError: the URL has a host, query or fragment; or it is not a path.
    """
    path = _file_url_path(root) if scheme_of(root) else root
    if "\0" in path:
        raise InvalidRequestError(
            "ILLEGAL_ROOT", f"root {shown('root', root)}: not a path", fix="Give a directory or a file:// URL"
        )
    if _CHAIN.match(path):
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', path.partition('?')[0])}: a chain of file systems, expected one",
            fix="Write the URL of the store itself: sparklog caches what it needs",
        )
    if path == "~" or path.startswith("~/"):
        # Only a shell expands it; a directory of that name would be created, and removed with `rm -r ~`.
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', root)}: ~ does not mean the home directory here",
            fix="Write the path out, or os.path.expanduser(...) in Python; ./~ is a directory of that name",
        )
    # resolve() would follow links that may move.
    return os.path.abspath(Path(path))


def memory_name(root: str) -> str:
    """Return the name in memory://name."""
    return root.split("//", 1)[-1]


def _file_url_path(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in {"", "localhost"} or parts.query or parts.fragment:
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', url)}: found a host, query or fragment, expected file:///absolute/path",
            fix="Write file:///path with three slashes, or a plain path",
        )
    return urllib.parse.unquote(parts.path)


def parse_s3_url(url: str) -> tuple[str, str]:
    """Return (bucket, prefix without slashes at its ends)."""
    match = _URL.fullmatch(url)
    if match is None:
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            "the root is not of the form s3://bucket/prefix",
            fix="Write s3://bucket/prefix; credentials and endpoints are storage options, not parts of it",
        )
    for suffix, what in _UNSUITABLE.items():
        if match[1].endswith(suffix):
            raise InvalidRequestError(
                "UNSUPPORTED_STORE",
                f"the root's bucket is called *{suffix}: {what}",
                fix="Use a general purpose bucket of one Region; see docs/s3.md",
            )
    prefix = (match[2] or "").strip("/")
    return match[1], validate_name(prefix) if prefix else ""


def parse_gs_url(url: str) -> tuple[str, str]:
    """Return (bucket, prefix without slashes at its ends)."""
    match = _GS_URL.fullmatch(url)
    if match is None:
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', url.partition('?')[0])}: not of the form gs://bucket/prefix",
            fix="Write gs://bucket/prefix; credentials are storage options, not parts of it",
        )
    prefix = (match[2] or "").strip("/")
    return match[1], validate_name(prefix) if prefix else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AzurePlace:
    """A container of Azure Storage, and a prefix in it.

    Fields:
        account, domain: of the URL's host, acct.dfs.core.windows.net; "" if it has none.
    """

    container: str
    account: str
    domain: str
    prefix: str

    @property
    def url(self) -> str:
        """Return the URL in one form."""
        host = f"@{self.account}.dfs.{self.domain}" if self.account else ""
        scheme = "abfss" if host else "az"
        return f"{scheme}://{self.container}{host}/{self.prefix}".rstrip("/")


def parse_azure_url(url: str) -> AzurePlace:
    """Parse abfss://container@account.dfs.core.windows.net/prefix, or az://container/prefix."""
    match = _AZURE_URL.fullmatch(url)
    host = None if match is None or match[2] is None else _AZURE_HOST.fullmatch(match[2])
    if match is None or (match[2] is not None and host is None):
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', url.partition('?')[0])}: not of the form "
            "abfss://container@account.dfs.core.windows.net/prefix or az://container/prefix",
            fix="Write one of these; credentials, and the endpoints of other servers, are storage options",
        )
    prefix = (match[3] or "").strip("/")
    return AzurePlace(
        container=match[1],
        account=host[1].lower() if host else "",
        domain=host[2].lower() if host else "",
        prefix=validate_name(prefix) if prefix else "",
    )


_HDFS_URL = re.compile(r"(s?webhdfs|hdfs)://([^/?#@:]+)(?::(\d{1,5}))?(?:/([^?#]*))?", re.IGNORECASE)
# Where a NameNode serves WebHDFS, unless its settings say otherwise; hdfs:// has the port of RPC.
_HDFS_PORT, _HDFS_TLS_PORT = 9870, 9871


@dataclass(frozen=True, slots=True, kw_only=True)
class HdfsPlace:
    """A directory in HDFS.

    Fields:
        url: in one form.
        endpoint: of WebHDFS, as the URL has it, or by default.
        prefix: the path, without slashes at its ends.
    """

    url: str
    endpoint: str
    prefix: str


def parse_hdfs_url(url: str) -> HdfsPlace:
    """Parse hdfs://host[:RPC port]/path, webhdfs://host[:HTTP port]/path, or swebhdfs:// with TLS."""
    match = _HDFS_URL.fullmatch(url)
    if match is None or int(match[3] or 1) not in range(1, 1 << 16):
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', url.partition('?')[0])}: not of the form hdfs://host:port/path or "
            "webhdfs://host:port/path",
            fix="Write one of these; the user and tokens are storage options, not parts of it",
        )
    scheme, host = match[1].lower(), match[2].lower()
    prefix = (match[4] or "").strip("/")
    if prefix:
        validate_name(prefix)
    port = int(match[3]) if match[3] and scheme != "hdfs" else None
    tls = scheme == "swebhdfs"
    return HdfsPlace(
        url=f"{scheme}://{host}{f':{match[3]}' if match[3] else ''}/{prefix}".rstrip("/"),
        endpoint=f"{'https' if tls else 'http'}://{host}:{port or (_HDFS_TLS_PORT if tls else _HDFS_PORT)}",
        prefix=prefix,
    )


_FSSPEC_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#:]*(?::\d+)?)(?:/([^?#]*))?")


def parse_fsspec_url(url: str) -> str:
    """Return scheme://[user@]host[:port]/path in one form, for a file system of fsspec's."""
    match = _FSSPEC_URL.fullmatch(url)
    if match is None or "::" in url:  # of a chain, whose last file system is another one
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', url.partition('?')[0])}: not of the form scheme://host/path",
            fix="Write scheme://host/path; passwords are storage options, not parts of it",
        )
    path = (match[3] or "").strip("/")
    if path:
        validate_name(path)
    return f"{match[1].lower()}://{match[2]}/{path}".rstrip("/")


# --- allowed roots -----------------------------------------------------------------------------------
#
# Allowed roots: a list of prefixes, for processes that let others name roots.
#
#     SPARKLOG_ALLOWED_ROOTS=s3://logs/team-a,file:///data/logs      for every process that has it
#
# A root may be named by an option, by SQL, or by a broker's answer, and is opened with the credentials of the
# process. Several lists may apply, the environment's and a query's: a root must be under each of them, so
# that an option can narrow what an administrator allows, and never widen it.
#
# Invariants: locations are compared as the store would use them, not as they are written: a directory by its
#     absolute path with links followed, a bucket and key as they are sent. Whole parts are compared, so
#     s3://b/log does not allow s3://b/logs. A text that cannot be parsed is not allowed.
# Not here: the callers (client/root.py, client/brokers.py). A variable does not restrict the process's own
#     code, which can change it.
# Concurrency: pure, except that links are read: a user who may change links beneath an allowed prefix may
#     lead out of it.


OPTION = "allowedRoots"
VARIABLE = "SPARKLOG_ALLOWED_ROOTS"


@dataclass(frozen=True, slots=True)
class AllowedRoots:
    """A list of prefixes; picklable.

    Fields:
        source: the option or variable, for messages.
        prefixes: as they were written.
    """

    source: str
    prefixes: tuple[str, ...]


def parse_allowed_roots(given: str | Iterable[str], source: str = OPTION) -> AllowedRoots:
    """Parse a list of paths and URLs, separated by commas; a comma in a path is %2C in a file:// URL.

    Spaces around each are dropped. The items of a list are not split further.

    Raises:
        InvalidRequestError: INVALID_OPTION: the list is empty, or an item cannot be a root or is a relative
            path.
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
    """Parse SPARKLOG_ALLOWED_ROOTS, if it is set. An empty value is an error, not permission."""
    text = environment.get(VARIABLE)
    return () if text is None else (parse_allowed_roots(text, VARIABLE),)


def validate_allowed(root: str | os.PathLike[str], allowed: Iterable[AllowedRoots]) -> None:
    """Refuse a root that is outside one of the lists. Reads nothing of the root.

    Raises:
        InvalidRequestError: ROOT_NOT_ALLOWED; or the root could not be opened at all.
    """
    text = os.fspath(root)
    for allowed_by in allowed:
        found = _place(text)
        if not any(_is_within(found, _place(prefix)) for prefix in allowed_by.prefixes):
            raise InvalidRequestError(
                "ROOT_NOT_ALLOWED",
                f"root {shown('root', text)}: found {shown('root', _text(found))}, expected a place under "
                f"one of {', '.join(shown('root', prefix) for prefix in allowed_by.prefixes)} "
                f"({allowed_by.source})",
                fix=f"Name an allowed root, or add its place to {allowed_by.source}; if a broker "
                "named the root, check that it is the expected broker",
            )


def _place(root: str) -> tuple[str, ...]:
    """Return the scheme, and the parts of the location as the store uses it."""
    scheme = scheme_of(root)
    if scheme in S3_SCHEMES:
        bucket, prefix = parse_s3_url(root)
        return ("s3", bucket, *(prefix.split("/") if prefix else ()))
    if scheme in GS_SCHEMES:
        bucket, prefix = parse_gs_url(root)
        return ("gs", bucket, *(prefix.split("/") if prefix else ()))
    if scheme in AZURE_SCHEMES:
        place = parse_azure_url(root)
        scheme, _, rest = place.url.partition("://")
        return (scheme, *rest.split("/"))
    if scheme in HDFS_SCHEMES:
        scheme, _, rest = parse_hdfs_url(root).url.partition("://")
        return (scheme, *rest.split("/"))
    if scheme in {"", "file"}:
        real = os.path.realpath(local_path(root))
        return ("file", *(part for part in real.split("/") if part))
    if scheme == "memory":
        return ("memory", memory_name(root))
    scheme, _, rest = parse_fsspec_url(root).partition("://")
    return (scheme, *rest.split("/"))


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


# --- root rules --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RootRules:
    """Restrictions on a root; picklable.

    Fields:
        cluster_id: the expected one; None: any.
        allowed: the root must be within each of these.
    """

    cluster_id: str | None = None
    allowed: tuple[AllowedRoots, ...] = ()

    def validate_place(self, root: str | os.PathLike[str]) -> None:
        """Check the root's location; call it before anything of the root is read.

        Raises:
            InvalidRequestError: ROOT_NOT_ALLOWED.
        """
        validate_allowed(root, self.allowed)

    def validate_cluster_id(self, found: str, where: str) -> None:
        """Check the root's cluster id; call it before anything of the root is used.

        Raises:
            InvalidRequestError: WRONG_ROOT.
        """
        if self.cluster_id is not None and found != self.cluster_id:
            raise InvalidRequestError(
                "WRONG_ROOT",
                f"{where}: found cluster id {shown('cluster', found)}, expected "
                f"{shown('cluster', self.cluster_id)}",
                fix="Name the expected root or broker; or correct the cluster id: option "
                "clusterId, cluster_id in Python, --cluster-id",
            )


ANY_ROOT = RootRules()


def root_rules(
    cluster_id: str | None, allowed_roots: str | Iterable[str] | None, environment: Mapping[str, str]
) -> RootRules:
    """Combine the given rules and those of the environment.

    Raises:
        InvalidRequestError: INVALID_OPTION.
    """
    if cluster_id is not None and not cluster_id.strip():
        raise InvalidRequestError(
            "INVALID_OPTION",
            "the cluster id is empty",
            fix="Give the id that sparklog root describe shows, or none",
        )
    allowed = allowed_by_environment(environment)
    if allowed_roots is not None:
        allowed += (parse_allowed_roots(allowed_roots),)
    if cluster_id is None and not allowed:
        return ANY_ROOT
    return RootRules(cluster_id=None if cluster_id is None else cluster_id.strip(), allowed=allowed)
