"""Rewrites the golden file of the metadata log: only after a format change, with an ADR.

python tests/golden/make_metadata.py
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    """Write metadata_commit.bin."""
    sys.path.insert(0, str(HERE.parents[1]))  # for what the tests share
    from sparklog.metadata.documents.document import encode_commit
    from tests.metadata.golden_actions import ACTIONS
    from tests.metadata.test_document import header

    (HERE / "metadata_commit.bin").write_bytes(encode_commit(header(), ACTIONS))


if __name__ == "__main__":
    main()
