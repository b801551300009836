import pytest

from sparklog.cli.consume import Anchor, Position, PositionError, parse_positions, resolve


@pytest.mark.parametrize(
    ("texts", "start", "end"),
    [
        ((), None, None),
        (("beginning",), Position(Anchor.BEGINNING), None),
        (("latest",), Position(Anchor.END), None),
        (("17",), Position(Anchor.OFFSET, 17), None),
        (("-5",), Position(Anchor.LAST, 5), None),
        (("s@100", "e@200"), Position(Anchor.TIMESTAMP, 100), Position(Anchor.TIMESTAMP, 200)),
        (("e@200",), None, Position(Anchor.TIMESTAMP, 200)),
        (("stored",), Position(Anchor.STORED), None),
    ],
)
def test_words_of_kcat(texts: tuple[str, ...], start: Position | None, end: Position | None) -> None:
    assert parse_positions(texts) == (start, end)


@pytest.mark.parametrize("text", ["", "middle", "s@", "s@-1", "e@x", "1.5", "--5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PositionError):
        parse_positions((text,))


def test_two_starts_are_refused() -> None:
    with pytest.raises(PositionError, match="two starts"):
        parse_positions(("beginning", "end"))


@pytest.mark.parametrize(
    ("position", "expected"),
    [
        (Position(Anchor.BEGINNING), 10),
        (Position(Anchor.END), 20),
        (Position(Anchor.OFFSET, 15), 15),
        (Position(Anchor.LAST, 3), 17),
        (Position(Anchor.LAST, 300), 10),
        (Position(Anchor.TIMESTAMP, 1_000), 12),
        (Position(Anchor.TIMESTAMP, 9_999), 20),
        (Position(Anchor.STORED), 14),
    ],
)
def test_resolves_against_the_offsets_of_a_partition(position: Position, expected: int) -> None:
    found = resolve(
        position,
        log_start_offset=10,
        log_end_offset=20,
        offset_for_time=lambda ms: 12 if ms <= 1_000 else None,
        stored=14,
    )
    assert found == expected


@pytest.mark.parametrize(("stored", "expected"), [(None, 10), (3, 10), (12, 12)])
def test_stored_falls_back_to_the_beginning(stored: int | None, expected: int) -> None:
    found = resolve(
        Position(Anchor.STORED),
        log_start_offset=10,
        log_end_offset=20,
        offset_for_time=lambda _ms: None,
        stored=stored,
    )
    assert found == expected
