"""Answers about all topics: made once an image."""

import dataclasses

import pytest

import sparklog
from sparklog_server.api import topic_listing
from sparklog_server.api.topic_listing import MAX_KEPT, TopicListing
from sparklog_server.cluster.leadership import Leadership
from sparklog_server.protocol.metadata_response import encode_topic
from tests.support.running_broker import RunningBroker


def test_nothing_is_made_anew_while_nothing_has_changed(
    running_broker: RunningBroker, log: sparklog.SparkLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        log.create_topic(f"t{number}")
    image = log.image
    made: list[str | None] = []

    def counted(version: int, *, name: str | None, **fields: object) -> list[bytes]:
        made.append(name)
        return encode_topic(version, name=name, **fields)  # type: ignore[arg-type]

    monkeypatch.setattr(topic_listing, "encode_topic", counted)
    listing = TopicListing(Leadership(1, log))
    first = listing.of(image, 12, 0)
    assert listing.of(image, 12, 0) is first
    assert len(made) == 5
    assert listing.of(image, 9, 0) is not first
    newer = dataclasses.replace(image, commit=image.commit + 1)
    assert listing.of(newer, 12, 0) is not first
    assert len(made) == 15
    for version in range(13):
        listing.of(newer, version, 0)
    assert len(listing) == MAX_KEPT
