"""Who may do what in a transaction: initialising, adding, forgetting; what is refused, and what applies."""

import msgspec
import pytest

from sparklog.errors import FencedError, InvalidRequestError, RetriableError, SparklogError, UnknownTopicError
from sparklog.metadata import (
    AddToTransaction,
    AllocateProducerIds,
    BeginProducer,
    ForgetTransactions,
    SetConfigs,
    TransactionPhase,
    plan_begin_producer,
    plan_forget_ids,
    plan_forget_transactions,
)
from sparklog.metadata.model import transactions as model
from sparklog.metadata.model.action import ActionRefusedError
from sparklog.metadata.model.transaction_values import PARTITION_WEIGHT, TOPIC_WEIGHT
from tests.metadata.transacting import TOPIC, Root


@pytest.fixture
def root() -> Root:
    return Root()


def code(raised: pytest.ExceptionInfo[SparklogError]) -> str:
    return raised.value.code


# --- begin_producer ----------------------------------------------------------------------------------


def test_a_new_id_gets_a_producer_that_nobody_ever_had(root: Root) -> None:
    assert root.begin("app") == (0, 0)
    assert root.begin("job") == (1, 0)
    assert root.image.next_producer_id == 2
    one = root.transaction()
    assert (one.phase, one.number, one.timeout_ms, one.changed_ms) == (
        TransactionPhase.EMPTY,
        0,
        60_000,
        1_000,
    )
    assert root.image.transactions.of_producer(1) is root.transaction("job")
    assert root.image.transactions.of_producer(2) is None


def test_another_process_gets_the_next_epoch_and_ends_what_is_open(root: Root) -> None:
    old = root.open()
    root.stage(old, 0, 3)
    new = root.begin()
    assert new == (0, 1)
    one = root.transaction()
    assert (one.phase, len(one.partitions), one.staged_extents, one.staged_bytes) == (
        TransactionPhase.EMPTY,
        0,
        0,
        0,
    )
    assert root.visible() == []
    for act in (
        lambda: root.add(old, 1),
        lambda: root.stage(old, 3),
        lambda: root.end(old),
        lambda: root.begin(known=old),
    ):
        with pytest.raises(FencedError) as raised:
            act()
        assert code(raised) == "PRODUCER_FENCED"


def test_a_process_that_goes_on_is_answered_again(root: Root) -> None:
    first = root.begin()
    second = root.begin(known=first)
    assert second == (0, 1)
    commit = root.image.commit
    assert root.begin(known=first) == second  # the answer was lost
    assert root.image.commit == commit
    third = root.begin(known=second)
    assert third == (0, 2)
    with pytest.raises(FencedError):
        root.begin(known=first)


def test_a_process_that_others_have_followed_is_not(root: Root) -> None:
    first = root.begin()
    root.begin()
    with pytest.raises(FencedError):
        root.begin(known=first)
    with pytest.raises(FencedError):
        root.begin(known=(5, 0))


def test_a_producer_of_a_forgotten_id_begins_anew(root: Root) -> None:
    first = root.begin()
    root.apply(ForgetTransactions(transactional_ids=("app",)))
    assert root.begin(known=first) == (1, 0)


@pytest.mark.slow
def test_epochs_run_out(root: Root) -> None:
    root.begin()
    root.apply(*(begin(0, epoch) for epoch in range(1, 32_767)))
    last = 0, 32_766
    root.add(last, 0)
    root.stage(last, 0)
    assert root.begin(known=last) == (1, 0)
    assert root.image.transactions.of_producer(0) is None
    assert root.begin(known=last) == (1, 0)  # it is answered again
    assert root.begin() == (1, 1)


def begin(producer_id: int, epoch: int, name: str = "app") -> BeginProducer:
    return BeginProducer(
        transactional_id=name, producer_id=producer_id, producer_epoch=epoch, timeout_ms=1, time_ms=2
    )


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (begin(0, 0), "producer 0 in epoch 0, expected the one after 0 in epoch 0"),
        (begin(0, 2), "expected the one after 0 in epoch 0"),
        (begin(2, 0), "expected the one after"),  # never allocated
        (begin(1, 0), "producer id 1 is that of 'job'"),
        (begin(1, 1), "expected the one after"),
        (begin(1, 0, "new"), "producer id 1 is that of 'job'"),
        (begin(-1, 0, "new"), "expected the one after none"),
        (begin(0, 1, ""), "0 characters"),
        (begin(0, 1, "x" * 1025), "1025 characters"),
        (msgspec.structs.replace(begin(0, 1), timeout_ms=0), "timeout 0 ms"),
        (msgspec.structs.replace(begin(0, 1), time_ms=-1), "time -1"),
    ],
)
def test_illegal_beginnings(root: Root, action: BeginProducer, reason: str) -> None:
    root.begin("app")
    root.begin("job")
    with pytest.raises(ActionRefusedError, match=reason):
        root.apply(action)


@pytest.mark.parametrize(("name", "length"), [("", 0), ("x" * 1025, 1025)])
def test_an_id_has_a_length(root: Root, name: str, length: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"{length} characters") as raised:
        root.begin(name)
    assert code(raised) == "INVALID_TRANSACTIONAL_ID"
    assert root.begin("x" * 1024) == (0, 0)


def test_a_new_id_has_a_length_in_bytes(root: Root) -> None:
    """1,024 emoji are 4 KB, of which everybody who uses the root holds 65,536."""
    wide = "\U0001f600"
    with pytest.raises(InvalidRequestError, match="1028 bytes in UTF-8, expected at most 1024") as raised:
        root.begin(wide * 257)
    assert code(raised) == "INVALID_TRANSACTIONAL_ID"
    assert root.begin(wide * 256) == (0, 0)


def test_an_id_that_was_begun_before_goes_on(root: Root) -> None:
    name = "\U0001f600" * 1_024
    begin = BeginProducer(
        transactional_id=name, producer_id=0, producer_epoch=0, timeout_ms=1_000, time_ms=1, follows=False
    )
    root.apply(AllocateProducerIds(count=1, first=0), begin)
    assert root.begin(name) == (0, 1)


@pytest.mark.parametrize("timeout_ms", [0, -1, 1 << 31])
def test_a_timeout_is_a_time(root: Root, timeout_ms: int) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        root.begin(timeout_ms=timeout_ms)
    assert code(raised) == "INVALID_TRANSACTION_TIMEOUT"


def test_ids_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_TRANSACTIONAL_IDS", 2)
    root.open("one")
    root.open("two")
    with pytest.raises(RetriableError, match="2 transactional ids that are open") as raised:
        root.begin("three")
    assert code(raised) == "TRANSACTIONS_FULL"
    assert root.begin("one") == (0, 1)


def test_near_the_bound_the_longest_unused_ids_are_forgotten(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the order of commits, whatever clocks say: none that is open, or of the half that was used last."""
    monkeypatch.setattr(model, "MAX_TRANSACTIONAL_IDS", 8)
    for name in ("open", "used", "never", "unused", "recent", "more", "others", "last"):
        producer = root.begin(name)
        if name in ("open", "used", "unused"):
            root.add(producer, 0, name=name)
        if name in ("used", "unused"):
            root.end(producer, name=name)
        root.now_ms -= 100
    root.end(root.open("used"), name="used", second=True)
    forgotten: list[str] = []
    for number in range(3):
        before = set(root.image.transactions)
        root.begin(f"new {number}")
        forgotten += before - set(root.image.transactions)
        assert len(root.image.transactions) == 8
    # Of the older half: what never had a transaction, then by age.
    assert forgotten == ["never", "recent", "more"]
    for name in ("open", "unused", "others", "last"):
        assert name in root.image.transactions


def test_a_producer_whose_id_was_forgotten_begins_anew(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it sends counts, until it is another producer."""
    monkeypatch.setattr(model, "MAX_TRANSACTIONAL_IDS", 2)
    old = root.open()
    root.stage(old, 0, 3)
    root.end(old)
    root.begin("two")
    root.begin("three")
    assert set(root.image.transactions) == {"two", "three"}
    for send in (
        lambda: root.add(old, 0),
        lambda: root.stage(old, 3, opens=True),
        lambda: root.end(old),
        lambda: root.end(old, second=True),
    ):
        with pytest.raises(InvalidRequestError) as raised:
            send()
        assert code(raised) == "PRODUCER_UNMAPPED"
    new = root.begin("app", old)
    assert new[0] != old[0]
    assert root.visible() == [(0, 3, 0)]
    with pytest.raises(InvalidRequestError):
        root.add(old, 0)


def test_ids_of_one_client_can_be_replaced(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("other", "a", "b", "c", "d"):
        root.begin(name)
    monkeypatch.setattr(model, "MAX_TRANSACTIONAL_IDS", 5)  # its own go before those of others
    own = ["a", "b", "c", "d", "gone"]
    begun = plan_begin_producer(root.image, "e", timeout_ms=1, now_ms=1, replaceable=own)
    assert begun.actions[0] == ForgetTransactions(transactional_ids=("a",))
    root.open("a")
    root.open("b")
    begun = plan_begin_producer(root.image, "e", timeout_ms=1, now_ms=1, replaceable=own)
    assert begun.actions[0] == ForgetTransactions(transactional_ids=("c",))
    with pytest.raises(RetriableError) as raised:
        plan_begin_producer(root.image, "e", timeout_ms=1, now_ms=1, replaceable=["a", "b"])
    assert code(raised) == "TRANSACTIONS_FULL"
    assert plan_begin_producer(root.image, "a", timeout_ms=1, now_ms=1, replaceable=own).producer_epoch == 2


def test_an_administrator_forgets_ids(root: Root) -> None:
    producer = root.open("open")
    root.begin("unused")
    action = plan_forget_ids(root.image, ["unused", "unused"])
    assert action == ForgetTransactions(transactional_ids=("unused",))
    with pytest.raises(InvalidRequestError) as raised:
        plan_forget_ids(root.image, ["unused", "open"])
    assert code(raised) == "TRANSACTION_STATE"
    with pytest.raises(InvalidRequestError) as raised:
        plan_forget_ids(root.image, ["unknown"])
    assert code(raised) == "TRANSACTION_MISSING"
    root.end(producer, name="open")
    root.apply(plan_forget_ids(root.image, ["unused", "open"]))
    assert not root.image.transactions


def test_what_open_transactions_have_added_is_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    group = TOPIC_WEIGHT + 1
    most = 2 * TOPIC_WEIGHT + 3 * PARTITION_WEIGHT + group
    monkeypatch.setattr(model, "MAX_ROOT_WEIGHT", most)
    one, two = root.begin("one"), root.begin("two")
    root.add(one, 0, 1, name="one")
    root.add(two, 0, name="two")
    with pytest.raises(RetriableError, match="open transactions of") as raised:
        root.add(two, 1, groups=("g",), name="two")
    assert code(raised) == "TRANSACTIONS_FULL"
    with pytest.raises(RetriableError):
        root.add(two, groups=("\N{LATIN SMALL LETTER E WITH ACUTE}",), name="two")  # two bytes
    root.add(two, groups=("g",), name="two")
    root.add(two, 0, name="two")  # it has that already
    assert root.image.transactions.weight == most
    root.end(one, name="one", committed=True)
    assert root.image.transactions.weight == TOPIC_WEIGHT + PARTITION_WEIGHT + group
    root.add(two, 1, groups=("h",), name="two")


def test_a_new_producer_is_allocated_in_the_same_commit(root: Root) -> None:
    begun = plan_begin_producer(root.image, "app", timeout_ms=1, now_ms=1)
    assert [type(one) for one in begun.actions] == [AllocateProducerIds, BeginProducer]
    root.apply(*begun.actions)
    again = plan_begin_producer(root.image, "app", timeout_ms=1, now_ms=1)
    assert [type(one) for one in again.actions] == [BeginProducer]


# --- add_to_transaction ------------------------------------------------------------------------------


def test_what_is_added_opens_a_transaction(root: Root) -> None:
    producer = root.begin()
    root.now_ms = 2_000
    root.add(producer, 1, 0, groups=["readers"])
    one = root.transaction()
    assert (one.phase, one.number, one.started_ms) == (TransactionPhase.ONGOING, 1, 2_000)
    assert list(one.partitions) == [(TOPIC, 0), (TOPIC, 1)]
    root.now_ms = 3_000
    root.add(producer, 0, 2, groups=["readers", "others"])
    one = root.transaction()
    assert (one.number, one.started_ms, one.groups) == (1, 2_000, ("readers", "others"))
    assert list(one.partitions) == [(TOPIC, 0), (TOPIC, 1), (TOPIC, 2)]


def test_what_is_added_twice_takes_no_commit(root: Root) -> None:
    producer = root.begin()
    root.add(producer, 0, groups=["readers"])
    before = root.image
    assert (
        model.plan_add_to_transaction(
            before, "app", *producer, partitions=[(TOPIC, 0)] * 2, groups=["readers"], now_ms=5
        )
        == []
    )


def test_a_group_alone_opens_one_too(root: Root) -> None:
    root.add(root.begin(), groups=["readers"])
    assert root.transaction().is_ongoing


def test_the_next_transaction_has_nothing_of_the_last(root: Root) -> None:
    producer = root.begin()
    root.add(producer, 0, groups=["readers"])
    root.end(producer)
    root.add(producer, 1)
    one = root.transaction()
    assert (one.number, list(one.partitions), one.groups) == (2, [(TOPIC, 1)], ())


def test_what_is_added_exists(root: Root) -> None:
    producer = root.begin()
    with pytest.raises(UnknownTopicError):
        root.add(producer, 3)
    with pytest.raises(ActionRefusedError, match="no partition 3"):
        root.apply(adding(partition=(3,)))


def adding(**fields: object) -> AddToTransaction:
    values = {
        "transactional_id": "app",
        "producer_id": 0,
        "producer_epoch": 0,
        "time_ms": 1,
        "topics": (TOPIC,),
        "partition": (0,),
        **fields,
    }
    return AddToTransaction(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"producer_epoch": 1}, "of producer 0 epoch 0"),
        ({"producer_id": 1}, "of producer 0 epoch 0"),
        ({"transactional_id": "job"}, "is unknown"),
        ({"topics": (), "partition": ()}, "nothing is added"),
        ({"partition": (0, 0)}, "named twice"),
        ({"topics": ("Z" * 22,)}, "no topic has the id"),
        ({"time_ms": -1}, "time -1"),
    ],
)
def test_illegal_additions(root: Root, fields: dict[str, object], reason: str) -> None:
    root.begin()
    with pytest.raises(ActionRefusedError, match=reason):
        root.apply(adding(**fields))


def test_who_adds_has_the_id(root: Root) -> None:
    root.begin()
    for producer, name in (((1, 0), "app"), ((0, 0), "job")):
        with pytest.raises(InvalidRequestError) as raised:
            root.add(producer, 0, name=name)
        assert code(raised) == "PRODUCER_UNMAPPED"
    with pytest.raises(FencedError):
        root.add((0, 1), 0)


def test_partitions_and_groups_are_bounded(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model, "MAX_TRANSACTION_PARTITIONS", 2)
    monkeypatch.setattr(model, "MAX_TRANSACTION_GROUPS", 1)
    monkeypatch.setattr(model, "MAX_TRANSACTION_GROUP_CHARACTERS", 7)
    producer = root.begin()
    root.add(producer, 0)
    root.add(producer, 1)
    for partitions, groups in (((0, 2), ()), ((), ("a", "b")), ((), ("abcdefgh",))):
        with pytest.raises(InvalidRequestError) as raised:
            root.add(producer, *partitions, groups=groups)
        assert code(raised) == "TRANSACTION_TOO_LARGE"
    root.add(producer, groups=["abcdefg"])


# --- forget_transactions -----------------------------------------------------------------------------


def test_ids_that_are_not_used_are_forgotten(root: Root) -> None:
    old = root.begin("old")
    root.open("open", 0)
    root.now_ms = 5_000
    root.begin("new")
    assert plan_forget_transactions(root.image, 5_999, 5_000) is None
    action = plan_forget_transactions(root.image, 6_000, 5_000)
    assert action == ForgetTransactions(transactional_ids=("old",))
    root.apply(action)
    assert sorted(root.image.transactions) == ["new", "open"]
    assert root.image.transactions.of_producer(old[0]) is None
    with pytest.raises(InvalidRequestError, match="which is unknown"):
        root.add(old, 0, name="old")


@pytest.mark.parametrize("name", ["app", "unknown"])
def test_one_that_is_open_is_not_forgotten(root: Root, name: str) -> None:
    root.open()
    with pytest.raises(ActionRefusedError, match="is unknown, or has a transaction that is open"):
        root.apply(ForgetTransactions(transactional_ids=(name,)))


def test_not_more_are_forgotten_at_once_than_a_commit_should_have(
    root: Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "MAX_FORGOTTEN_IDS", 2)
    for name in ("a", "b", "c"):
        root.begin(name)
    action = plan_forget_transactions(root.image, 10_000, 1)
    assert action is not None
    assert len(set(action.transactional_ids)) == 2
    root.apply(action)
    rest = plan_forget_transactions(root.image, 10_000, 1)
    assert rest is not None
    assert {*action.transactional_ids, *rest.transactional_ids} == {"a", "b", "c"}


def test_a_commit_without_transactions_copies_nothing_of_them(root: Root) -> None:
    root.stage(root.open(), 0)
    before = root.image.transactions
    root.apply(SetConfigs(configs={"compression.type": "lz4"}))
    assert root.image.transactions is before
    root.stage((0, 0), 1)
    assert root.image.transactions.by_producer is before.by_producer
    assert root.image.transactions.staging is before.staging
