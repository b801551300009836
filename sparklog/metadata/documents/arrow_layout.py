"""What an Arrow IPC file says of its own layout: asked before Arrow reads it, and allocates what it says.

Arrow decompresses a buffer into as many bytes as the buffer claims, and joins dictionaries as often as the
footer names them: 20 KB can ask for gigabytes. There is nothing to tell it how much it may take. So what a
part of a snapshot never has is found here, in the file's own tables (flatbuffers), and refused.

Invariants: nothing is allocated by what the file says; a place outside the file is ValueError.
Concurrency: pure functions.
Sources: the Arrow columnar format, "IPC File Format", File.fbs and Message.fbs; FlatBuffers internals.
"""

import struct

_MAGIC = b"ARROW1"
_CONTINUATION = 0xFFFFFFFF
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3  # of MessageHeader
_BLOCK_BYTES = 24
# Fields, by their places in the tables.
_FOOTER_DICTIONARIES, _FOOTER_RECORD_BATCHES = 2, 3
_MESSAGE_HEADER_TYPE, _MESSAGE_HEADER = 1, 2
_DICTIONARY_DATA = 1
_BATCH_COMPRESSION = 3


def why_not_plain(data: memoryview) -> str | None:
    """Why this is no file of one batch, one dictionary at most, and no compression; None if it is.

    Raises: ValueError, it is no Arrow file.
    """
    end = len(data) - len(_MAGIC) - 4
    if end < 0 or bytes(data[end + 4 :]) != _MAGIC:
        raise ValueError("no Arrow file")
    footer = _table(data, end - _number(data, end, "i"))
    blocks = [_blocks(data, footer, field) for field in (_FOOTER_DICTIONARIES, _FOOTER_RECORD_BATCHES)]
    (dictionaries, first_dictionary), (batches, first_batch) = blocks
    if dictionaries > 1 or batches != 1:
        return f"{batches} batches and {dictionaries} dictionaries, expected one batch and one dictionary"
    if dictionaries and _is_compressed(data, first_dictionary):
        return "a compressed dictionary, expected one that is not"
    return "a compressed batch, expected one that is not" if _is_compressed(data, first_batch) else None


def _blocks(data: memoryview, footer: int, field: int) -> tuple[int, int]:
    """How many messages the footer names, and where the first one is named."""
    at = _field(data, footer, field)
    if at is None:
        return 0, 0
    vector = at + _number(data, at, "I")
    return _number(data, vector, "I"), vector + 4


def _is_compressed(data: memoryview, block: int) -> bool:
    _number(data, block + _BLOCK_BYTES - 8, "q")  # it is there, whole
    start = _number(data, block, "q")
    start += 8 if _number(data, start, "I") == _CONTINUATION else 4
    message = _table(data, start)
    kind, header = _field(data, message, _MESSAGE_HEADER_TYPE), _field(data, message, _MESSAGE_HEADER)
    if kind is None or header is None:
        raise ValueError("a message without a header")
    batch = header + _number(data, header, "I")
    if _number(data, kind, "B") == _DICTIONARY_BATCH:
        inner = _field(data, batch, _DICTIONARY_DATA)
        if inner is None:
            raise ValueError("a dictionary without data")
        batch = inner + _number(data, inner, "I")
    elif _number(data, kind, "B") != _RECORD_BATCH:
        raise ValueError("a message of another kind")
    return _field(data, batch, _BATCH_COMPRESSION) is not None


# --- flatbuffers -------------------------------------------------------------------------------------


def _table(data: memoryview, start: int) -> int:
    """The place of the table that the buffer at `start` begins with."""
    return start + _number(data, start, "I")


def _field(data: memoryview, table: int, field: int) -> int | None:
    """The place of a table's field; None if the table leaves it out."""
    names = table - _number(data, table, "i")
    slot = 4 + 2 * field
    if slot + 2 > _number(data, names, "H"):
        return None
    offset = _number(data, names + slot, "H")
    return table + offset if offset else None


def _number(data: memoryview, place: int, code: str) -> int:
    if not 0 <= place <= len(data) - struct.calcsize(code):
        raise ValueError(f"a number at byte {place} of {len(data)}")
    return int(struct.unpack_from(f"<{code}", data, place)[0])
