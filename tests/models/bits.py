"""Sets of small numbers as the bits of one: they hash and compare fast."""

from collections.abc import Iterator


def bit(number: int) -> int:
    return 1 << number


def below(number: int) -> int:
    """All numbers from 0 on that are smaller."""
    return (1 << number) - 1


def has(bits: int, number: int) -> bool:
    return bool(bits >> number & 1)


def highest(bits: int) -> int:
    """-1: there is none."""
    return bits.bit_length() - 1


def lowest(bits: int) -> int:
    """-1: there is none."""
    return (bits & -bits).bit_length() - 1


def numbers(bits: int) -> list[int]:
    return [number for number in range(bits.bit_length()) if has(bits, number)]


def subsets(bits: int) -> Iterator[int]:
    """All of them, the empty one first."""
    subset = 0
    while True:
        yield subset
        subset = (subset - bits) & bits
        if not subset:
            return
