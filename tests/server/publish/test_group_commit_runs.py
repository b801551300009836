"""Parts that become one append: rebased, never copied, never mixed."""

import pytest

from sparklog.format.batch_table import scan_batches
from sparklog.format.decode import decode_records
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import RecordColumns
from sparklog_server.publish.parts import concat_batches, make_runs, shifted
from tests.server.publish.batches import TOPIC_ID, batch, part


def test_batches_count_from_zero_over_the_run() -> None:
    pieces = [part(batch([b"%d" % n] * (n + 1))).encoded for n in range(4)]
    whole = concat_batches(pieces)
    data = whole.to_bytes()
    table = scan_batches(data, where="here")  # with CRCs
    assert table.base_offset.tolist() == whole.base_offset.tolist() == [0, 1, 3, 6]
    assert table.position.tolist() == whole.position.tolist()
    assert table.size.tolist() == whole.size.tolist()
    assert whole.record_count == 10
    assert whole.batch_record_count.tolist() == [1, 2, 3, 4]
    assert decode_records(data, table, where="here").offset.tolist() == list(range(10))


def test_pieces_of_several_batches() -> None:
    import numpy as np
    import pyarrow as pa

    columns = RecordColumns(
        key=None, value=pa.array([b"v" * 60] * 50), timestamp_ms=np.arange(50, dtype=np.int64)
    )
    piece = encode_batches(columns, EncodeOptions(max_batch_bytes=512))
    assert piece.batch_count > 3
    data = concat_batches([piece, piece]).to_bytes()
    table = scan_batches(data, where="here")
    assert decode_records(data, table, where="here").offset.tolist() == list(range(100))


def test_only_base_offsets_are_new_bytes() -> None:
    encoded = part(batch([b"v" * 10_000])).encoded
    chunks = shifted(encoded, 7)
    assert sum(len(chunk) for chunk in chunks) == encoded.size_bytes
    big = max(chunks, key=len)
    assert isinstance(big, memoryview)
    assert any(big.obj is memoryview(chunk).obj for chunk in encoded.data)


def test_what_does_not_continue_starts_a_run() -> None:
    parts = [
        part(producer=(1, 0, 0)),
        part(producer=(1, 0, 2)),
        part(producer=(1, 0, 5)),  # a gap: the caller judges, this only never joins it
        part(producer=(1, 1, 7)),
        part(producer=(2, 1, 9)),
        part(),
        part(),
        part(partition=1),
        part(topic_id="B" * 22),
    ]
    runs = make_runs(parts, range(len(parts)), 1 << 20)
    assert [run.indices for run in runs] == [[0, 1], [2], [3], [4], [5, 6], [7], [8]]
    assert runs[0].skipped == [0, 2]
    assert runs[0].first.topic_id == TOPIC_ID


def test_runs_are_bounded() -> None:
    parts = [part() for _ in range(5)]
    size = parts[0].size_bytes
    assert [run.indices for run in make_runs(parts, range(5), 2 * size)] == [[0, 1], [2, 3], [4]]
    assert [run.indices for run in make_runs(parts, range(5), 1)] == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize("delta", [0, 1, 1 << 40])
def test_shifting(delta: int) -> None:
    encoded = part().encoded
    table = scan_batches(b"".join(shifted(encoded, delta)), where="here")
    assert table.base_offset.tolist() == [delta]
