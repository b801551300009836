"""plan_read and read_ranges: exact ranges, bounded steps, damage named, small extents gathered."""

import dataclasses
import pickle  # noqa: TID251 - Spark carries plans this way
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from sparklog.errors import CorruptLogError, DataLossError, OffsetOutOfRangeError, SparklogError
from sparklog.format.codec import Codec
from sparklog.format.record_batch import encode_header, parse_header
from sparklog.log.read_plan import bytes_between, end_offset_for_bytes
from sparklog.log.reader import ByteRange, plan_read, read_ranges
from sparklog.storage import Store


def values(count: int, size: int = 100) -> list[bytes]:
    return [b"%06d" % number + b"." * (size - 6) for number in range(count)]


def read(partition: Any, start: int, end: int, **options: Any) -> list[tuple[int, bytes]]:
    ranges = plan_read(partition.store, partition.state, start, end, topic="t")
    return collect(partition.store, ranges, **options)


def collect(store: Store, ranges: Iterable[ByteRange], **options: Any) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    for part in read_ranges(store, ranges, **options):
        assert part.num_rows > 0
        found += zip(part.offset.tolist(), part.value.to_pylist(), strict=True)
    return found


def path_of(partition: Any, number: int = 0) -> Path:
    segment: str = partition.state.extents[number].segment
    return Path(partition.store.root) / segment


@pytest.fixture
def big(local: Any, encoder: Callable[..., Any]) -> Any:
    """One extent of 5000 records in batches of about 1000 bytes."""
    local.append(values(5000), batch_bytes=1000)
    return local


@pytest.mark.parametrize(
    ("start", "end"), [(0, 5000), (0, 1), (4999, 5000), (17, 4321), (2500, 2501), (7, 7)]
)
def test_any_range_yields_exactly_its_records(big: Any, start: int, end: int) -> None:
    expected = list(enumerate(values(5000)))[start:end]
    assert read(big, start, end) == expected
    assert read(big, start, end, step_bytes=1) == expected
    assert read(big, start, end, step_bytes=2500) == expected


def test_a_plan_is_trimmed_to_the_batches_that_hold_the_range(big: Any) -> None:
    (one,) = plan_read(big.store, big.state, 2500, 2510, topic="t")
    assert one.size < 4000
    assert pickle.loads(pickle.dumps(one)) == one
    assert list(plan_read(big.store, big.state, 7, 7)) == []


def test_offsets_outside_the_log_are_refused(big: Any) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"t-0: found end offset 5001, expected 0 to 5000"):
        read(big, 0, 5001)
    with pytest.raises(OffsetOutOfRangeError, match="found start offset -1"):
        read(big, -1, 3)


@pytest.mark.parametrize("codec", list(Codec))
def test_many_small_extents_are_read_as_one(local: Any, codec: Codec) -> None:
    rows = values(300)
    for at in range(0, 300, 3):
        local.append(rows[at : at + 3], codec=codec)
    parts = list(read_ranges(local.store, plan_read(local.store, local.state, 1, 299)))
    assert len(parts) == 1
    assert read(local, 1, 299) == list(enumerate(rows))[1:299]
    assert read(local, 4, 296, step_bytes=700) == list(enumerate(rows))[4:296]


def test_ranges_that_were_planned_one_by_one_do_not_repeat_records(local: Any) -> None:
    local.append(values(10))
    local.append(values(10))
    ranges = [
        one
        for start, end in ((0, 5), (5, 12), (12, 20))
        for one in plan_read(local.store, local.state, start, end)
    ]
    assert [offset for offset, _ in collect(local.store, ranges)] == list(range(20))


def test_compressed_batches_are_decoded_in_bounded_groups(local: Any) -> None:
    local.append(values(3000, 1000), codec=Codec.ZSTD, batch_bytes=100_000)
    parts = list(read_ranges(local.store, plan_read(local.store, local.state, 0, 3000), step_bytes=50_000))
    assert sum(part.num_rows for part in parts) == 3000
    sizes = [part.value.nbytes for part in parts]
    assert max(sizes[1:]) < 250_000


def test_a_missing_segment_is_data_loss(big: Any) -> None:
    path_of(big).unlink()
    for start in (0, 2500):
        with pytest.raises(DataLossError, match=r"t-0 in segments/.*@0: found no such file") as caught:
            read(big, start, 5000)
        assert caught.value.code == "SEGMENT_MISSING"


def test_a_truncated_segment_is_named(big: Any) -> None:
    path = path_of(big)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - 1)
    for start in (0, 2500):
        with pytest.raises(CorruptLogError, match=rf"t-0 in segments/.*found a file of {size - 1} bytes"):
            read(big, start, 5000)


def flip(path: Path, position: int, bit: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 1 << bit]))


@pytest.mark.parametrize("in_batch", [3, 7, 9, 16, 20, 26, 60, 61, 500])
def test_a_flipped_bit_anywhere_is_found(big: Any, in_batch: int) -> None:
    (cut,) = plan_read(big.store, big.state, 2500, 2501, topic="t")
    batch = cut.position
    following = batch + cut.size
    flip(path_of(big), batch + in_batch)
    with pytest.raises(SparklogError, match=rf"t-0 in segments/[^ ]*@({batch}|{following})\b") as caught:
        read(big, 0, 5000)
    assert caught.value.code in {
        "CORRUPT_BATCH",
        "EXTENT_MISMATCH",
        "UNSUPPORTED_MAGIC",
        "UNSUPPORTED_ATTRIBUTES",
    }


def test_damage_in_a_gathered_extent_is_located(local: Any) -> None:
    for at in range(0, 30, 3):
        local.append(values(30)[at : at + 3])
    extent = local.state.extents[4]
    flip(path_of(local), extent.position + 100)
    with pytest.raises(CorruptLogError, match=rf"t-0 in {extent.segment}@{extent.position}: found CRC"):
        read(local, 0, 30)
    assert read(local, 0, 12) == list(enumerate(values(30)))[:12]


def test_an_extent_that_refers_to_other_batches_is_found(big: Any) -> None:
    (one,) = plan_read(big.store, big.state, 0, 5000, topic="t")
    later = next(iter(plan_read(big.store, big.state, 100, 5000))).position
    shifted = dataclasses.replace(one, offset_delta=1)
    with pytest.raises(CorruptLogError, match="EXTENT_MISMATCH"):
        collect(big.store, [shifted])
    with pytest.raises(CorruptLogError, match="EXTENT_MISMATCH"):
        collect(big.store, [dataclasses.replace(one, start_offset=200)])
    with pytest.raises(SparklogError, match=r"EXTENT_MISMATCH|CORRUPT_BATCH|UNSUPPORTED_MAGIC"):
        collect(big.store, [dataclasses.replace(one, position=later + 1, size=one.size - later - 1)])
    with pytest.raises(CorruptLogError, match=r"expected 61 to 67, the rest of the extent"):
        collect(big.store, [dataclasses.replace(one, size=1000)])
    repeated = dataclasses.replace(one, end_offset=100, size=later, start_offset=0)
    again = dataclasses.replace(repeated, start_offset=100, end_offset=200)
    with pytest.raises(CorruptLogError, match="EXTENT_MISMATCH"):
        collect(big.store, [repeated, again])


def test_torn_bytes_behind_the_last_extent_are_harmless(big: Any) -> None:
    with path_of(big).open("ab") as file:
        file.write(b"\0" * 100 + b"garbage")
    assert len(read(big, 0, 5000)) == 5000


def test_bytes_of_a_range_are_estimated_by_share(local: Any) -> None:
    first = local.append(values(100))
    second = local.append(values(100))
    state = local.state
    assert bytes_between(state, 0, 200) == first.size + second.size
    assert bytes_between(state, 50, 100) == pytest.approx(first.size / 2, abs=1)
    assert bytes_between(state, 10, 10) == 0
    assert end_offset_for_bytes(state, 0, first.size) == 100
    assert end_offset_for_bytes(state, 0, first.size + second.size // 2) == 150
    assert end_offset_for_bytes(state, 50, 1) == 51
    assert end_offset_for_bytes(state, 150, 10**9) == 200
    assert end_offset_for_bytes(state, 200, 10) == 200


@pytest.mark.parametrize("bit", range(4))
def test_a_flipped_base_offset_is_found_though_no_crc_covers_it(big: Any, bit: int) -> None:
    (one,) = plan_read(big.store, big.state, 2500, 2501, topic="t")
    flip(path_of(big), one.position + 7, bit)
    for start, end in ((0, 5000), (2500, 2501), (2500, 5000), (0, 2501), (2490, 2520)):
        with pytest.raises(CorruptLogError, match=r"EXTENT_MISMATCH.*t-0 in segments"):
            read(big, start, end)
    assert len(read(big, 0, 2400)) == 2400
    assert len(read(big, 2600, 5000)) == 2400


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("extents", [1, 3])
def test_a_malformed_batch_with_a_right_crc_is_located(local: Any, codec: Codec, extents: int) -> None:
    for _ in range(extents):
        local.append(values(30), codec=codec, batch_bytes=1000)
    extent = local.state.extents[-1]
    path = path_of(local)
    data = bytearray(path.read_bytes())
    first = parse_header(data, extent.position, "test")
    position = extent.position + first.size
    header = parse_header(data, position, "test")
    body = bytes(len(data[position + 61 : position + header.size]))
    data[position : position + header.size] = encode_header(header, body) + body
    path.write_bytes(data)
    with pytest.raises(CorruptLogError, match=rf"t-0 in {extent.segment}@{position}\b") as caught:
        read(local, 0, 30 * extents)
    assert caught.value.code == "CORRUPT_BATCH"
