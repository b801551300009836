"""Names of the metadata log's files.

Sources: FORMAT.md#metadata-log.
"""

import re

DIRECTORY = "__cluster_metadata"
# Put before the first commit is ever removed, and never removed itself; see cleaning.py.
CLEANED_MARKER = f"{DIRECTORY}/cleaned"
# The number of the newest snapshot, on stores that list slowly; see snapshot_hint.py.
SNAPSHOT_HINT = f"{DIRECTORY}/newest-snapshot"
# Requests to be published by somebody else; see requests.py.
REQUESTS = f"{DIRECTORY}/requests"
# A sign of life of each broker; nothing in it is metadata.
HEARTBEATS = f"{DIRECTORY}/heartbeats"
# The id of the newest incarnation, on stores where publishing does not look; see incarnation.py.
INCARNATION = f"{DIRECTORY}/incarnation"
MANIFEST = "manifest.json"
# In [0-9], since \d is a digit of any script: a file of such a name is somebody else's.
_COMMIT = re.compile(DIRECTORY + r"/([0-9]{20})\.json")
_MANIFEST = re.compile(DIRECTORY + r"/([0-9]{20})\.snapshot/manifest\.json")
_SNAPSHOT = re.compile(DIRECTORY + r"/([0-9]{20})\.snapshot/.+")
_REQUEST = re.compile(REQUESTS + r"/([0-9A-Za-z_-]{22})\.([0-9]{20})\.([0-9]{13})\.json")


def commit_name(commit: int) -> str:
    """The file of a commit."""
    return f"{DIRECTORY}/{commit:020d}.json"


def snapshot_directory(commit: int) -> str:
    """The directory of the snapshot taken after `commit`."""
    return f"{DIRECTORY}/{commit:020d}.snapshot"


def manifest_name(commit: int) -> str:
    """The file whose presence makes a snapshot."""
    return f"{snapshot_directory(commit)}/{MANIFEST}"


def commit_of(name: str) -> int | None:
    """The commit that a file is, if it is one."""
    return _number(_COMMIT.fullmatch(name))


def manifest_of(name: str) -> int | None:
    """The snapshot that a file is the manifest of, if it is one."""
    return _number(_MANIFEST.fullmatch(name))


def snapshot_of(name: str) -> int | None:
    """The snapshot that a file belongs to, complete or not."""
    return _number(_SNAPSHOT.fullmatch(name))


def request_name(publisher: str, sequence: int, posted_ms: int) -> str:
    """The file of a request."""
    return f"{REQUESTS}/{publisher}.{sequence:020d}.{posted_ms % 10**13:013d}.json"


def request_of(name: str) -> tuple[str, int, int] | None:
    """(publisher, sequence, posted_ms) of the request that a file is, if it is one."""
    match = _REQUEST.fullmatch(name)
    return (match.group(1), int(match.group(2)), int(match.group(3))) if match else None


def _number(match: re.Match[str] | None) -> int | None:
    return int(match.group(1)) if match else None
