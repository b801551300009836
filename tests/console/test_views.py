"""What views share: parameters, pages of rows, and the cache."""

import dataclasses

import pytest

from sparklog.client import SparkLog
from sparklog.client.lag import LagHistory
from sparklog.console.views import MAX_FILTER, Console, Query, RecentImages, Shares, paged
from sparklog.errors import InvalidRequestError
from sparklog.metadata import empty_image


@pytest.fixture
def console(log: SparkLog) -> Console:
    return Console(log, log.refresh, LagHistory())


@pytest.mark.parametrize("text", ["-1", "1.5", "x", "٣", "1" * 19, "1e3"])
def test_only_numbers_are_numbers(text: str) -> None:
    for query in (Query({}, {"page": text}), Query({"page": text}, {})):
        with pytest.raises(InvalidRequestError, match="page: found"):
            query.number("page", 1)


def test_parameters_and_their_defaults() -> None:
    query = Query({"topic": "t"}, {"page": "7", "filter": f"  {'x' * 1000}", "empty": ""})
    assert (query.name("topic"), query.number("page", 1), query.number("empty", 3)) == ("t", 7, 3)
    assert (query.text("nothing"), query.text("nothing", "d"), len(query.filter)) == ("", "d", MAX_FILTER)


@pytest.mark.parametrize(
    ("asked", "page", "rows"), [("1", 1, [0, 1, 2]), ("3", 3, [6]), ("0", 1, [0, 1, 2]), ("9", 3, [6])]
)
def test_pages_of_rows(asked: str, page: int, rows: list[int]) -> None:
    paging, shown = paged(range(7), Query({}, {"page": asked}), size=3)
    assert (paging.page, paging.pages, paging.total, list(shown)) == (page, 3, 7, rows)


def test_a_user_gets_as_much_room_as_is_left() -> None:
    shares = Shares()
    assert [shares.take("a", 8) for _ in range(5)] == [True] * 4 + [False]
    assert [shares.take("b", 8) for _ in range(3)] == [True] * 2 + [False]
    assert [shares.take("c", 8), shares.take("c", 8), shares.take("d", 8)] == [True, False, True]
    assert not shares.take("e", 8)
    shares.give_back("a")
    assert shares.take("e", 8)
    nobody = Shares()
    assert [nobody.take("", 2) for _ in range(3)] == [True, True, False]


def test_no_rows_are_one_page() -> None:
    nothing: list[int] = []
    paging, shown = paged(nothing, Query({}, {}))
    assert (paging.page, paging.pages, list(shown)) == (1, 1, [])


def test_facts_are_found_once_and_forgotten_when_they_are_many(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[int] = []

    def find() -> int:
        found.append(1)
        return len(found)

    assert [console.fact("a", find), console.fact("a", find), console.fact("b", find)] == [1, 1, 2]
    monkeypatch.setattr("sparklog.console.views.MAX_CACHED", 2)
    assert [console.fact("c", find), console.fact("a", find)] == [3, 4]


def test_what_is_recent_is_found_again_later(console: Console) -> None:
    numbers = iter(range(10))
    assert [console.recent("a", 100, lambda: next(numbers)) for _ in range(2)] == [0, 0]
    console.log.clock.sleep_ms(101)
    assert console.recent("a", 100, lambda: next(numbers)) == 1


def test_few_past_images_are_kept(console: Console) -> None:
    loaded: list[int] = []

    def ask(commit: int) -> None:
        console.past(commit, lambda: loaded.append(commit) or console.image)  # type: ignore[func-returns-value]

    for commit in (1, 2, 3, 1, 4, 1, 2):
        ask(commit)
    assert loaded == [1, 2, 3, 4, 2]


def test_recent_images_reach_a_minute_back() -> None:
    empty = empty_image("C" * 22)
    recent = RecentImages()
    assert recent.oldest(0) is None
    images = [dataclasses.replace(empty, commit=number) for number in range(10)]
    for number, image in enumerate(images):
        recent.add(10_000 * number, image)
    assert recent.oldest(90_000) == (60.0, images[3])
    alone = RecentImages()
    alone.add(0, empty)
    assert alone.oldest(999) is None
    assert alone.oldest(500_000) == (500.0, empty)
