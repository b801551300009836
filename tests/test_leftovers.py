"""What tests are not to leave behind is found."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from sparklog_server.runtime.log_files import KINDS
from tests.support.leftovers import Leftovers


def test_a_thread_that_goes_on_is_found() -> None:
    before, ending = Leftovers(patience_seconds=0), threading.Event()
    thread = threading.Thread(target=ending.wait, name="forgotten")
    thread.start()
    (found,) = before.threads()
    assert "forgotten" in found
    ending.set()
    thread.join()
    assert before.threads() == []


def test_a_thread_that_is_about_to_end_is_waited_for() -> None:
    before, ending = Leftovers(patience_seconds=60), threading.Event()
    thread = threading.Thread(target=ending.wait)
    thread.start()
    threading.Timer(0.01, ending.set).start()
    assert before.threads() == []
    assert not thread.is_alive()


def test_idle_threads_of_an_executor_are_none() -> None:
    before = Leftovers(patience_seconds=0)
    with ThreadPoolExecutor(2, thread_name_prefix="storage") as pool:
        pool.submit(int).result()
        assert before.threads() == []


def test_a_logger_that_is_set_otherwise_is_found() -> None:
    before, logger = Leftovers(patience_seconds=0), logging.getLogger(KINDS["server"][1])
    logger.setLevel(logging.INFO)
    try:
        (found,) = before.loggers()
    finally:
        logger.setLevel(logging.NOTSET)
    assert KINDS["server"][1] in found
    assert before.loggers() == []
