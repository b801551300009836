"""A mutant: sparklog with one rule broken, the loss that the rule prevents, and the tests that should notice.

There are two forms. A *patch* replaces a function while the tests run: it applies as long as the function has
its name, and only in the process of the tests. An *edit* replaces a short text of a source file, in a copy of
the tree, for a rule within a function.
"""

import os
import pkgutil
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

PATCH_VARIABLE = "SPARKLOG_MUTANT"  # the number of a mutant, for plugin.py


@dataclass(frozen=True, slots=True)
class Edit:
    """`old`, which occurs once in the file, becomes `new`."""

    path: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Patch:
    """The function of this dotted name does nothing, and returns this."""

    target: str
    returns: object

    @property
    def path(self) -> str:
        """The file of the module that the name is looked up in."""
        parts = self.target.split(".")
        return next(
            path
            for end in range(len(parts) - 1, 0, -1)
            if Path(path := "/".join(parts[:end]) + ".py").is_file()
        )

    def start(self) -> None:
        """Replace the function for the rest of this process; AttributeError: there is none."""
        mock.patch(self.target, return_value=self.returns).start()


@dataclass(frozen=True, slots=True)
class Mutant:
    """The loss, how the rule against it is broken, and which tests should notice."""

    loss: str
    change: Edit | Patch
    tests: str

    def why_stale(self, tree: Path) -> str | None:
        """Return why the mutant does not apply any more; None: it does."""
        for test in self.tests.split():
            if not (tree / test).exists():
                return f"no tests {test}"
        if isinstance(self.change, Edit):
            path = tree / self.change.path
            found = path.read_text(encoding="utf-8").count(self.change.old) if path.exists() else 0
            return None if found == 1 else f"{self.change.path}: found {self.change.old!r} {found} times"
        try:
            pkgutil.resolve_name(self.change.target)
        except (ImportError, AttributeError) as error:
            return str(error)
        return None


def edit(loss: str, path: str, old: str, new: str, tests: str) -> Mutant:
    """Make a mutant that replaces a text of a file."""
    return Mutant(loss, Edit(path, old, new), tests)


def patch(loss: str, target: str, tests: str, returns: object = None) -> Mutant:
    """Make a mutant that replaces a function."""
    return Mutant(loss, Patch(target, returns), tests)


def number_from_environment() -> int | None:
    """Return which mutant's patch this process shall start."""
    text = os.environ.get(PATCH_VARIABLE)
    return None if text is None else int(text)
