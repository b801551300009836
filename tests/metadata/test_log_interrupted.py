"""Ctrl-C in a publish: whatever it interrupts, other processes get the lock afterwards."""

import contextlib

import pytest

from sparklog.clock import ManualClock
from sparklog.metadata import MetadataLog, SetConfigs, log
from sparklog.metadata.documents.properties import DIRECTORY
from sparklog.storage import LocalStore, local, local_files
from tests.support.interrupts import interrupt_everywhere

MODULES = (log.__name__, local_files.__name__, local.__name__, contextlib.__name__)


def is_free(store: LocalStore, directory: str) -> bool:
    lock = store.advisory_lock(directory)
    try:
        return lock.acquire()
    finally:
        lock.release()


@pytest.mark.slow
def test_no_interrupt_keeps_the_lock(local: LocalStore, clock: ManualClock) -> None:
    publisher = MetadataLog.open(local, clock, create=True)
    publisher.publish(lambda _: [SetConfigs(configs={"first": "x"})])
    tracebacks: list[KeyboardInterrupt] = []  # as an interactive session keeps the last one

    def publish() -> None:
        try:
            publisher.publish(lambda _: [SetConfigs(configs={"more": "x"})])
        except KeyboardInterrupt as interrupt:
            tracebacks.append(interrupt)
            raise

    places = []
    for where in interrupt_everywhere(publish, *MODULES):
        places.append(where)
        assert is_free(local, DIRECTORY), where
        assert is_free(local, ""), where
        publisher.refresh()  # else the next publish follows what this one may have linked, and takes longer
    assert len(places) > 100
