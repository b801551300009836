"""Judge histories: python -m tests.history FILE..."""

import sys
from pathlib import Path

from tests.history.checker import check
from tests.history.events import read_history


def main(paths: list[str]) -> int:
    if not paths:
        print(__doc__)
        return 2
    verdict = check(read_history(map(Path, paths)))
    print(verdict)
    return 1 if verdict.counts else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
