"""Ledgers in which transactions stage entries, and what tests of that say to them."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import sparklog
from sparklog.client import SparkLog
from sparklog.errors import SparklogError, StorageError
from sparklog.metadata import NEVER_OPENS
from sparklog_server.coordination.staging import StagedBy
from sparklog_server.publish.parts import InTransaction
from tests.server.coordination.toy import TOPIC, Entry, Toy, Toys
from tests.support.transactional_producer import TransactionalProducer

A, B = Entry("a0", 1), Entry("b0", 2)
GONE = StorageError("STORAGE_FAILED", "gone", fix="wait")


def begun(log: SparkLog, name: str = "app") -> TransactionalProducer:
    """Its transaction is open, with partition 0."""
    producer = TransactionalProducer(log, name).begin()
    producer.add(0, topic=TOPIC)
    return producer


def by(producer: TransactionalProducer, opens_ms: int = NEVER_OPENS) -> StagedBy:
    name, ids = producer.transactional_id, (producer.producer_id, producer.epoch)
    said = InTransaction(transactional_id=name, opens_ms=opens_ms)
    if opens_ms == NEVER_OPENS:
        said = InTransaction.of_first_protocol(producer.log.image, name, *ids)
    return StagedBy(producer_id=producer.producer_id, producer_epoch=producer.epoch, transaction=said)


def stages(toy: Toy, producer: TransactionalProducer, *entries: Entry) -> "asyncio.Task[None]":
    return asyncio.ensure_future(toy.log_of(0).stage(entries, by(producer)))


def staged(toy: Toy) -> dict[Entry, int]:
    return dict(toy.log_of(0).state.staged)


async def staged_by_another(toys: Toys, producer: TransactionalProducer) -> Toy:
    """The coordinator of another broker, which has staged A; to be closed."""
    other = Toy(toys.url, toys.clock)
    other.shards.open()
    await other.settle()
    await other.log_of(0).stage([A], by(producer))
    return other


@contextmanager
def elsewhere(toys: Toys) -> Iterator[SparkLog]:
    """The same root, as another broker has it."""
    with sparklog.open(toys.url, clock=toys.clock) as log:
        yield log


@contextmanager
def held(toy: Toy, reader: str) -> Iterator[asyncio.Event]:
    """What was read so arrives when it may."""
    run, may_go = toy.root.run_apart, asyncio.Event()

    async def late(function: object, *args: object) -> object:
        read: object = await run(function, *args)  # type: ignore[arg-type]
        if getattr(function, "__name__", "") == reader:
            await may_go.wait()
        return read

    toy.root.run_apart = late  # type: ignore[method-assign,assignment]
    yield may_go
    toy.root.run_apart = run  # type: ignore[method-assign]


@contextmanager
def failing(toy: Toy, reader: str, error: SparklogError = GONE) -> Iterator[None]:
    """Storage fails whoever reads so."""
    run = toy.root.run_apart

    async def fails(function: object, *args: object) -> object:
        if getattr(function, "__name__", "") == reader:
            raise error
        return await run(function, *args)  # type: ignore[arg-type]

    toy.root.run_apart = fails  # type: ignore[method-assign,assignment]
    yield
    toy.root.run_apart = run  # type: ignore[method-assign]
