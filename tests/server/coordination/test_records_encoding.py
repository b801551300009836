"""Records of a state log become batches: whatever they are, and without what takes long to import."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from sparklog.format.batch_table import scan_batches
from sparklog.format.decode import decode_records
from sparklog_server.coordination.records import encode_records


@pytest.mark.parametrize(
    "records",
    [
        [(b"key", b"value")],
        [(b"key", None)],
        [(b"", b"")],
        [(b"a", b"1"), (b"bb", None), (b"", b"333"), (b"cccc", b""), (b"a", None)],
        [(b"%d" % number, None if number % 3 else b"v" * number) for number in range(100)],
    ],
)
def test_keys_and_values_are_what_they_were(records: Sequence[tuple[bytes, bytes | None]]) -> None:
    encoded = encode_records(records, 7)
    data = b"".join(map(bytes, encoded.data))
    found = decode_records(data, scan_batches(data, where="t"), where="t")
    assert list(zip(found.key.to_pylist(), found.value.to_pylist(), strict=True)) == list(records)


@pytest.mark.slow
def test_the_first_write_of_a_group_imports_no_pandas() -> None:
    """pyarrow does so by itself; the event loop has nothing else to do meanwhile, and nobody is answered."""
    script = """
import sys
from sparklog_server.coordination.records import encode_records
encode_records([(b"key", b"value"), (b"key", None)], 0)
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
