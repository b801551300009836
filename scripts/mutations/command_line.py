"""The command line: what it prints, and what it asks before it destroys."""

from scripts.mutations.mutant import Mutant

MUTANTS = (
    Mutant(
        "command line: a name cannot forge a row of a table",
        "sparklog/cli/output.py",
        "    return plain(_words(value))\n",
        "    return _words(value)\n",
        "tests/cli/test_plain_text.py -k forge",
    ),
    Mutant(
        "command line: a name cannot forge a line of a result",
        "sparklog/cli/output.py",
        '"\\t".join(map(plain, fields))',
        '"\\t".join(fields)',
        "tests/cli/test_plain_text.py",
    ),
)
