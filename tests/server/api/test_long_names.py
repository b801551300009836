"""Names and values of any length are answered, also in versions whose strings end at 32,767 bytes."""

from typing import Any

import pytest

import sparklog
from tests.server.api.config_requests import APPEND, BROKER, SET, TOPIC, alter, describe, resource
from tests.server.api.topic_requests import topic
from tests.support.wire_client import WireClient

LONG = 32_767
CREATE, ALTER, INCREMENTAL = 19, 33, 44


def test_a_topic_that_cannot_be_leaves_the_others_their_answers(
    asker: WireClient, log: sparklog.SparkLog
) -> None:
    """The connection was closed after `good` was made: who asked again was told that it is there already."""
    asked = [topic("good", 1), topic("\0" * LONG), topic("t", configs={"retention.ms": "x" * LONG})]
    for version in (4, 7):
        found = asker.ask(CREATE, version, topics=asked, timeout=5_000, validate_only=version == 7).topics
        assert [one.error_code.name for one in found][1:] == ["invalid_topic_exception", "invalid_config"]
        assert all(len(one.error_message) < 5_000 for one in found[1:])
    assert "good" in log.refresh().topics


@pytest.mark.parametrize(
    ("key", "of"),
    [
        (ALTER, resource(TOPIC, "t", ("\0" * LONG, "1"))),
        (ALTER, resource(TOPIC, "t", ("retention.ms", "x" * LONG))),
        (ALTER, resource(BROKER, "x" * LONG)),
        (ALTER, resource(TOPIC, "x" * LONG)),
        (INCREMENTAL, resource(TOPIC, "t", ("x" * LONG, APPEND, "1"))),
        (INCREMENTAL, resource(TOPIC, "t", *((f"{n}" + "x" * 9_999, SET, None) for n in range(9)))),
    ],
)
def test_settings_that_cannot_be(
    asker: WireClient, log: sparklog.SparkLog, key: int, of: dict[str, Any]
) -> None:
    log.create_topic("t")
    ((code, message),) = alter(asker, of, key=key, version=0)
    assert code != "none"
    assert 0 < len(message or "") < 5_000


@pytest.mark.parametrize(("kind", "name"), [(TOPIC, "\0" * LONG), (BROKER, "x" * LONG)])
def test_resources_that_are_not_there(asker: WireClient, kind: int, name: str) -> None:
    result, _ = describe(asker, kind, name, version=1)
    assert result.error_code.name in {"unknown_topic_or_partition", "invalid_request"}
    assert result.resource_name == name
