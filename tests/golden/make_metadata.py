"""Rewrites the golden files of the metadata log: only after a format change, with an ADR.

python tests/golden/make_metadata.py
"""

import importlib.util
import sys
from pathlib import Path

from sparklog.metadata.documents.document import encode_commit

HERE = Path(__file__).parent


def main() -> None:
    sys.path.insert(0, str(HERE.parents[1]))  # for what the tests share
    spec = importlib.util.spec_from_file_location(
        "test_document", HERE.parent / "metadata" / "test_document.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (HERE / "metadata_commit.bin").write_bytes(module.encoded())
    (HERE / "metadata_commit_2.bin").write_bytes(module.encoded(module.ACTIONS_2, version=2))
    (HERE / "metadata_commit_3.bin").write_bytes(module.encoded(module.ACTIONS_3, version=3))
    (HERE / "metadata_commit_4.bin").write_bytes(module.encoded(module.ACTIONS_4, version=4))
    (HERE / "metadata_commit_4_txn.bin").write_bytes(module.encoded(module.ACTIONS_4_TXN, version=4))
    (HERE / "metadata_commit_6.bin").write_bytes(module.encoded(module.ACTIONS_6, version=6))
    (HERE / "metadata_commit_7.bin").write_bytes(module.encoded(module.ACTIONS_7, version=7))
    (HERE / "metadata_commit_8.bin").write_bytes(module.encoded(module.ACTIONS_8, version=8))
    (HERE / "metadata_commit_8_brokers.bin").write_bytes(module.encoded(module.ACTIONS_8_BROKERS, version=8))
    (HERE / "metadata_commit_9.bin").write_bytes(encode_commit(module.header(), module.ACTIONS_9))
    (HERE / "metadata_commit_5.bin").write_bytes(encode_commit(module.header(), module.ACTIONS_5))


if __name__ == "__main__":
    main()
