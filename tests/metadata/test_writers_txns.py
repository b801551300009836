"""Writer transactions: versions of an application, once per topic."""

from collections.abc import Callable

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.metadata import (
    Action,
    DraftExtent,
    Image,
    MetadataLog,
    Topic,
    WriterTxn,
    new_id,
    plan_append,
    plan_delete_topic,
    plan_writer_txn,
)
from sparklog.metadata.documents.snapshot import read_snapshot
from sparklog.metadata.model import writers as writers_module
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.actions import apply_actions
from sparklog.metadata.model.image import WriterTxnState

A, B = "A" * 22, "B" * 22
Draft = Callable[..., DraftExtent]
Create = Callable[..., Topic]


def applied(image: Image, *actions: Action) -> Image:
    return apply_actions(image, actions, commit=image.commit + 1, commit_uuid=new_id())


def txn(version: int, *topics: str, application: str = "app", content: str = "") -> WriterTxn:
    return WriterTxn(application=application, version=version, topics=topics, content=content)


@pytest.fixture
def image(log: MetadataLog, create: Create) -> Image:
    """Topics a and b, empty."""
    create(log, "a", 1, topic_id=A)
    create(log, "b", 1, topic_id=B)
    return log.image


def test_a_version_is_applied_once(log: MetadataLog, image: Image, draft: Draft) -> None:
    assert image.topics.keys() == {"a", "b"}

    def publish(version: int) -> int:
        def plan(image: Image) -> list[Action]:
            marker = plan_writer_txn(image, "app", version, [A])
            return [] if marker is None else [plan_append(image, [draft(A)]), marker]

        return len(log.publish(plan).actions)

    assert [publish(version) for version in (0, 0, 1, 5, 3, 5, 6)] == [2, 0, 2, 2, 0, 0, 2]
    assert log.image.partition("a", 0).log_end_offset == 40
    assert log.image.topic("a").writer_txns == {"app": WriterTxnState(6, log.image.commit)}
    for version in (6, 0, -1):
        with pytest.raises(ActionRefusedError):
            applied(log.image, txn(version, A))


def test_each_topic_has_versions_of_its_own(image: Image) -> None:
    image = applied(image, txn(5, A))
    marker = plan_writer_txn(image, "app", 5, [B, A])
    assert marker == txn(5, B)
    image = applied(image, txn(5, B))
    assert plan_writer_txn(image, "app", 5, [A, B]) is None
    assert plan_writer_txn(image, "other", 0, [A]) == txn(0, A, application="other")


def test_one_commit_covers_several_topics(image: Image) -> None:
    marker = plan_writer_txn(image, "app", 1, [A, B, A], content="x")
    assert marker == txn(1, A, B, content="x")
    image = applied(image, marker)
    for topic in "ab":
        assert image.topic(topic).writer_txns == {"app": WriterTxnState(1, image.commit, "x")}


def test_a_refused_topic_leaves_the_other_as_it_was(image: Image) -> None:
    image = applied(image, txn(5, A))
    with pytest.raises(ActionRefusedError, match="version 5 of 'app' in topic 'a', expected one above 5"):
        applied(image, txn(5, B, A))
    assert image.topic("b").writer_txns == {}


def test_versions_go_with_their_topic(log: MetadataLog, image: Image, create: Create) -> None:
    log.publish(lambda image: [txn(5, A, B)])
    log.publish(lambda image: [plan_delete_topic(image, "a")])
    create(log, "a", 1, topic_id="D" * 22)
    assert log.image.applied("app", 5, "D" * 22) is None
    assert log.image.applied("app", 5, A) is None
    assert log.image.applied("app", 5, B) is not None
    with pytest.raises(ActionRefusedError, match="no topic has the id"):
        applied(image, txn(1, "E" * 22))


# --- content -----------------------------------------------------------------------------------------


def test_the_same_version_with_other_content_is_refused(image: Image) -> None:
    image = applied(image, txn(5, A, content="x"))
    with pytest.raises(
        InvalidRequestError, match=r"topic 'a': commit \d+ has version 5 .*\(x, expected y\)"
    ) as info:
        plan_writer_txn(image, "app", 5, [A, B], content="y")
    assert info.value.code == "TXN_CONTENT_DIFFERS"
    assert plan_writer_txn(image, "app", 5, [A], content="x") is None


def test_what_is_not_known_is_not_compared(image: Image) -> None:
    image = applied(image, txn(5, A, content="x"), txn(5, B))
    assert plan_writer_txn(image, "app", 5, [A]) is None  # nobody could say what it is now
    assert plan_writer_txn(image, "app", 5, [B], content="y") is None  # nor what it was
    assert plan_writer_txn(image, "app", 4, [A], content="y") is None  # an older version, long gone
    assert plan_writer_txn(image, "app", 6, [A], content="y") == txn(6, A, content="y")


def test_what_one_topic_is_past_and_another_does_not_have_is_refused(image: Image) -> None:
    """Whoever wrote the later version had finished this one, perhaps with other rows in it."""
    image = applied(image, txn(2, B, content="3-7"))
    with pytest.raises(
        InvalidRequestError, match=r"topic 'b': commit \d+ has version 2 of 'app', and topic 'a' does not"
    ) as info:
        plan_writer_txn(image, "app", 1, [B, A], content="1-5")
    assert info.value.code == "VERSION_OUTDATED"
    with pytest.raises(InvalidRequestError, match="and a new topic does not have version 1"):
        plan_writer_txn(image, "app", 1, ["F" * 22, B])
    assert plan_writer_txn(image, "app", 1, [A]) == txn(1, A)
    assert plan_writer_txn(image, "app", 1, [B]) is None
    assert plan_writer_txn(applied(image, txn(1, A)), "app", 1, [A, B]) is None


# --- bounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("application", "version", "content"),
    [("", 0, ""), ("x" * 1025, 0, ""), ("a", -1, ""), ("a", 1 << 63, ""), ("a", 0, "c" * 129)],
)
def test_malformed_versions(image: Image, application: str, version: int, content: str) -> None:
    with pytest.raises(InvalidRequestError):
        plan_writer_txn(image, application, version, [A], content=content)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (WriterTxn(application="a", version=0, topics=()), "0 topics"),
        (WriterTxn(application="a", version=0, topics=(A, A)), "2 topics"),
    ],
)
def test_malformed_actions(image: Image, action: WriterTxn, why: str) -> None:
    with pytest.raises(ActionRefusedError, match=why):
        applied(image, action)


def test_a_topic_forgets_who_has_not_written_for_the_longest_time(
    log: MetadataLog, image: Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers_module, "MAX_WRITER_TXNS", 3)
    assert image.commit == log.image.commit
    for number, name in enumerate("abcad"):
        log.publish(lambda image, name=name, number=number: [txn(number, A, application=name)])  # type: ignore[misc]
    assert list(log.image.topic("a").writer_txns) == ["c", "a", "d"]
    # The order is in snapshots too.
    log.write_snapshot()
    read = read_snapshot(log.store, log.image.commit, cluster_id=log.cluster_id)
    assert read == log.image
    read = applied(read, txn(9, A, application="e"))
    assert list(read.topic("a").writer_txns) == ["a", "d", "e"]
