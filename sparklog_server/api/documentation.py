"""The reference of the APIs that are served, as their modules' docstrings have it, for docs/apis.md.

Invariants: an API is told with the versions that are registered; a test compares these with its docstring.
Not here: the page (scripts/generate_docs.py).
"""

import re
import sys
from typing import NamedTuple

from sparklog_server.api.registry import declared_apis

_PART = re.compile(r"^(Does not|Does|Versions|Sources):(?= )", re.MULTILINE)


class ApiText(NamedTuple):
    """What is said of an API."""

    name: str
    key: int
    versions: str
    does: str
    does_not: str


def describe_apis() -> list[ApiText]:
    """By key."""
    described = []
    for one in declared_apis().values():
        parts = _parts(sys.modules[one.handler.__module__].__doc__ or "")
        first, last = one.versions.start, one.versions.stop - 1
        versions = str(first) if first == last else f"{first}-{last}"
        described.append(
            ApiText(one.name, int(one.key), versions, parts.get("Does", ""), parts.get("Does not", ""))
        )
    return described


def _parts(doc: str) -> dict[str, str]:
    """Each part up to the next one, or to a line that is indented no more; in one line."""
    found = list(_PART.finditer(doc))
    ends = [one.start() for one in found[1:]] + [len(doc)]
    return {one[1]: _one_line(doc[one.end() : end].strip()) for one, end in zip(found, ends, strict=True)}


def _one_line(text: str) -> str:
    own = re.split(r"\n(?! )", text)[0]
    return " ".join(own.split())
