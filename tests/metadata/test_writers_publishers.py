"""What an image remembers of publishers: their window, and how many."""

import dataclasses

import pytest

from sparklog.metadata import (
    Action,
    Image,
    RequestApplied,
    SetConfigs,
)
from sparklog.metadata.model import writers
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.model.image import empty_image
from tests.metadata.held_requests import NONCE, PUBLISHER, WINDOW


@pytest.fixture(autouse=True)
def _small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "REQUEST_WINDOW", WINDOW)


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid="u")


def request(sequence: int = 0, *, base: int = -1, publisher: str = PUBLISHER) -> RequestApplied:
    return RequestApplied(publisher=publisher, sequence=sequence, base=base, nonce=NONCE)


@pytest.mark.parametrize(
    ("base", "fits"), [(20, True), (21 - WINDOW, True), (21, False), (20 - WINDOW, False)]
)
def test_only_the_commits_of_its_window_apply_a_request(base: int, fits: bool) -> None:
    image = dataclasses.replace(empty_image("C" * 22), commit=20)
    if fits:
        assert applied(image, request(base=base)).has_settled(PUBLISHER, 0)
        return
    with pytest.raises(ActionRefusedError, match=f"expected one above {base} and at most {base + WINDOW}"):
        applied(image, request(base=base))


def test_a_publisher_is_remembered_for_the_window_after_its_last_request() -> None:
    image = applied(empty_image("C" * 22), request())  # in commit 0
    image = applied(image, request(1, base=0))  # heard of again, in commit 1
    image = applied(image, request(publisher="Q" * 22))
    for _ in range(WINDOW - 1):
        image = applied(image)
    assert image.commit == 1 + WINDOW
    assert list(image.publishers) == [PUBLISHER, "Q" * 22]
    image = applied(image)
    assert list(image.publishers) == ["Q" * 22]
    assert applied(image).publishers == {}


def test_no_image_remembers_more_publishers_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "MAX_PUBLISHERS", 2)
    ask = SetConfigs(configs={"a": "b"})
    image = applied(empty_image("C" * 22))
    for publisher in ("P", "Q"):
        image = applied(image, _asks(publisher), ask)
    with pytest.raises(ActionRefusedError, match="2 publishers are remembered already"):
        applied(image, _asks("R"), ask)
    assert applied(image, _asks("Q", 1), ask).has_settled("Q" * 22, 1)
    # What was given up can always be taken back.
    assert applied(image, request(publisher="R" * 22)).has_settled("R" * 22, 0)


def _asks(letter: str, sequence: int = 0) -> RequestApplied:
    return RequestApplied(publisher=letter * 22, sequence=sequence, actions=1, nonce=NONCE)
