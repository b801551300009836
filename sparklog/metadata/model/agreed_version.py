"""Up to which version of the metadata documents a root may be written by itself: what its owner agreed to.

Each document says the lowest version that knows what is in it (adr/0020), and a sparklog stops at the first
that it does not know. So one upgraded machine could stop all others, by what nobody asked it to do: merging
in the background, or a shorter form of an append. Such documents are written only up to the version that the
root's settings name. A root says nothing of it until it is told (adr/0024); a new one says in its first
commit what the sparklog that made it knows.

Invariants: pure. What somebody orders (`sparklog optimize`) does not ask; nor does what a writer cannot do
    without, which is of WRITERS_VERSION at most.
Not here: who asks (creating.py for columns, sparklog/maintenance/steps.py).
Sources: Kafka metadata.version (KIP-584, KIP-778).
"""

from collections.abc import Mapping

METADATA_VERSION_KEY = "sparklog.metadata.version"  # a setting of the root; declared in log/root_config.py
WRITERS_VERSION = 4
# Of a number that no version reaches. How many digits `int` takes is a setting of the process.
_MOST_DIGITS = 19


def agreed_version(configs: Mapping[str, str]) -> int:
    """The version that a root with these settings may be written with."""
    text = configs.get(METADATA_VERSION_KEY, "").strip()
    digits = text.lstrip("0")[:_MOST_DIGITS] or "0"
    return int(digits) if text.isascii() and text.isdigit() else WRITERS_VERSION
