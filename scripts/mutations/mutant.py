"""What a mutant is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One safeguard, and how it is switched off: a text that occurs once in a file, and what is put in its
    place; `tests` should notice.
    """

    safeguard: str
    path: str
    old: str
    new: str
    tests: str
