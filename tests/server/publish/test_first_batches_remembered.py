"""Room that clients share."""

import pytest

from sparklog_server.publish.first_batches import Remembered


def filled(most: int, *entries: tuple[int, str]) -> Remembered[int, str]:
    made: Remembered[int, str] = Remembered(most)
    for key, client in entries:
        made.remember(key, f"{client}{key}", client)
    return made


def test_the_oldest_of_the_only_client_goes() -> None:
    assert dict(filled(2, (1, "a"), (2, "a"), (3, "a"))) == {2: "a2", 3: "a3"}


def test_who_has_most_gives_way_to_who_has_less() -> None:
    assert list(filled(3, (1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "c"))) == [3, 4, 5]


@pytest.mark.parametrize("clients", [2, 3, 7])
def test_who_has_less_than_a_share_loses_nothing(clients: int) -> None:
    small = [(client, str(client)) for client in range(1, clients)]
    flood = [(key, "0") for key in range(100, 300)]
    known = filled(50, *flood[:100], *small, *flood[100:])
    assert len(known) == 50
    assert set(known) >= {key for key, _ in small}


def test_what_is_remembered_anew_is_the_newest_and_its_last_clients() -> None:
    known = filled(3, (1, "a"), (2, "a"), (3, "b"), (1, "b"), (4, "b"))
    assert list(known.items()) == [(2, "a2"), (1, "b1"), (4, "b4")]
    for key in (1, 2, 4, 5):
        known.forget(key)
    assert len(known) == 0
