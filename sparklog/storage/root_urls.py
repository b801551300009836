"""What a root's text names: a scheme, and what follows it, as the stores take it.

Invariants: whoever has to know where a root is, and not only to open it, asks here, so that both agree.
Not here: opening (opening.py); what is in a bucket (s3_rules.py). This needs no botocore.
"""

import os
import re
import urllib.parse
from pathlib import Path

from sparklog.errors import InvalidRequestError
from sparklog.redaction import shown
from sparklog.storage.names import validate_name

S3_SCHEMES = {"s3", "s3a", "s3n"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")

_UNSUITABLE = {
    "--x-s3": "a directory bucket (S3 Express One Zone), which cannot list from a name on, nor in order",
    "--xa-s3": "an access point of a directory bucket, which cannot list from a name on, nor in order",
    ".mrap": "a Multi-Region Access Point, whose buckets are replicas: none is the log in order",
    "--ol-s3": "an Object Lambda Access Point, which may change what is read",
}
_URL = re.compile(r"s3[an]?://([^/?#@:]+)(?:/([^?#]*))?", re.IGNORECASE)


def scheme_of(root: str) -> str:
    """The scheme in lower case; empty for a plain path."""
    match = _SCHEME.match(root)
    return match[1].lower() if match else ""


def local_path(root: str) -> str:
    """The path that a plain path or file:// URL names, absolute; links are not followed.

    Raises:
        InvalidRequestError: the URL has a host, query or fragment; or it is no path.
    """
    path = _file_url_path(root) if scheme_of(root) else root
    if "\0" in path:
        raise InvalidRequestError(
            "ILLEGAL_ROOT", f"root {shown('root', root)}: not a path", fix="Give a directory or a file:// URL"
        )
    if path == "~" or path.startswith("~/"):
        # Only a shell knows it; a directory of that name would be made, and removed with `rm -r ~`.
        raise InvalidRequestError(
            "ILLEGAL_ROOT",
            f"root {shown('root', root)}: ~ does not mean the home directory here",
            fix="Write the path out, or os.path.expanduser(...) in Python; ./~ is a directory of that name",
        )
    # resolve() would follow links that may move.
    return os.path.abspath(Path(path))


def memory_name(root: str) -> str:
    """The name in memory://name."""
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
    """(bucket, prefix without slashes at its ends)."""
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
