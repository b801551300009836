"""Writing from Spark and Python, from rows to what is published."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "client: a time before 1970 does not become now, nor 1970",
        "sparklog/client/rows.py",
        "    if oldest is None or oldest >= 0:\n",
        "    if oldest is None or oldest >= -1:\n",
        "tests/client/test_rows.py",
    ),
)
