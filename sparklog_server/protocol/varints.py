"""Kafka's unsigned varints, as they are written: seven bits a byte, the low ones first.

Concurrency: pure.
Sources: KIP-482.
"""

_SHORT = [bytes([value]) for value in range(0x80)]


def uvarint(value: int) -> bytes:
    """A number that is not negative."""
    if value < 0x80:
        return _SHORT[value]
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def compact_length(length: int) -> bytes:
    """The length of what follows in flexible versions: one more than it is, so that null (-1) is 0."""
    return _SHORT[length + 1] if length < 0x7F else uvarint(length + 1)
