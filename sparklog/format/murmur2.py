"""murmur2 over an Arrow column of keys: the same partition as Kafka's Java client chooses.

Invariants: bit-equal to org.apache.kafka.common.utils.Utils.murmur2.
Not here: what to do with null keys, whose hash here is meaningless (client/partitioner.py).
Concurrency: pure functions.
Sources: Kafka Utils.murmur2, BuiltInPartitioner.partitionForKey.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparklog.format import kernels
from sparklog.format.arrow_bytes import binary_column

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_R = np.uint32(24)
_MASK = 0xFFFFFFFF
_FEW_ROWS = 24  # below this, a Python loop over the words of one long key is cheaper than NumPy over the rows


def murmur2(array: pa.Array) -> npt.NDArray[np.int32]:
    """Java's murmur2 of every key, as its signed int. Cost: one NumPy pass per 4 bytes of the longest key."""
    starts, lengths, data, _ = binary_column(array)
    if kernels.are_loaded():
        return kernels.murmur2(data, starts, lengths)
    hashes = np.uint32(_SEED) ^ lengths.astype(np.uint32)
    position, words = starts.astype(np.int64), lengths >> 2
    # An overlapping view: element i is the word that starts at byte i.
    word_at = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))
    step = 0
    if len(hashes) > _FEW_ROWS:
        shortest = int(words.min())
        for step in range(shortest):  # words that every key has: no rows to choose
            hashes *= _M
            hashes ^= _mixed(word_at[position + 4 * step])
        step = shortest
    rows = np.flatnonzero(words > step)
    while len(rows) > _FEW_ROWS:
        hashes[rows] = (hashes[rows] * _M) ^ _mixed(word_at[position[rows] + 4 * step])
        step += 1
        rows = rows[words[rows] > step]
    for row in rows.tolist():
        start = int(position[row])
        hashes[row] = _mix_rest(int(hashes[row]), data[start + 4 * step : start + 4 * int(words[row])])
    _mix_tails(hashes, data, position + 4 * words.astype(np.int64), lengths & 3)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes.view(np.int32)


def partition_for_keys(array: pa.Array, partitions: int) -> npt.NDArray[np.int32]:
    """The partition of every key: (murmur2 & 0x7fffffff) % partitions."""
    return (murmur2(array) & np.int32(0x7FFFFFFF)) % np.int32(partitions)


def _mixed(word: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    word *= _M
    word ^= word >> _R
    word *= _M
    return word


def _mix_tails(
    hashes: npt.NDArray[np.uint32],
    data: npt.NDArray[np.uint8],
    position: npt.NDArray[np.int64],
    tail: npt.NDArray[np.int32],
) -> None:
    for byte in (2, 1, 0):
        rows = np.flatnonzero(tail > byte)
        hashes[rows] ^= data[position[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(tail > 0)
    hashes[rows] *= _M


def _mix_rest(hash_: int, rest: npt.NDArray[np.uint8]) -> int:
    for word in np.frombuffer(rest.tobytes(), "<u4").tolist():
        k = (word * 0x5BD1E995) & _MASK
        k ^= k >> 24
        hash_ = ((hash_ * 0x5BD1E995) & _MASK) ^ ((k * 0x5BD1E995) & _MASK)
    return hash_
