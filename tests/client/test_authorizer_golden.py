"""The verdicts of Kafka 4.3's StandardAuthorizer for 2,000 random sets of ACLs (tests/golden/README.md)."""

import lzma
from collections.abc import Iterator
from pathlib import Path

from tests.client.acl_cases import answers

GOLDEN = Path(__file__).parents[1] / "golden" / "acl_verdicts.txt.xz"


def golden_sets() -> Iterator[tuple[list[str], str]]:
    lines: list[str] = []
    for line in lzma.decompress(GOLDEN.read_bytes()).decode().splitlines():
        word, _, rest = line.partition("\t")
        if word == "ANSWERS":
            yield lines, rest
            lines = []
        else:
            lines.append(line)


def test_verdicts_are_those_of_kafka() -> None:
    count = allowed = 0
    for lines, expected in golden_sets():
        assert answers(lines) == expected, "\n".join(lines)
        count += len(expected)
        allowed += expected.count("1")
    assert count == 24_000
    assert 4_000 < allowed < 20_000  # neither verdict is rare
