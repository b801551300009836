"""The root of sparklog.testing."""

import os

import pyarrow as pa
import pytest

from sparklog import failpoints
from sparklog.errors import FatalStorageError, InvalidRequestError
from sparklog.failpoints import failpoint
from sparklog.testing import Root


def test_it_is_opened_as_often_as_a_test_likes(sparklog_root: Root) -> None:
    first, second = sparklog_root.open(), sparklog_root.open()
    first.append("orders", pa.table({"value": [b"book"]}))
    assert second.read("orders", 0, 0).num_rows == 1
    assert os.fspath(sparklog_root) == str(sparklog_root) == sparklog_root.path


def test_failpoints_fail_and_are_off_afterwards(sparklog_root: Root) -> None:
    log = sparklog_root.open()
    with (
        sparklog_root.failpoints("file.sync:1:raise=EIO"),
        pytest.raises(FatalStorageError, match="Input/output error"),
    ):
        log.append("orders", pa.table({"value": [b"book"]}))
    again = sparklog_root.open()
    again.append("orders", pa.table({"value": [b"book"]}))
    assert again.read("orders", 0, 0).num_rows == 1


@pytest.mark.parametrize("setting", ["put.linked:1", "put.linked:1:kill", "file.sync:1:raise, put.linked:2"])
def test_pytest_is_not_killed(setting: str, sparklog_root: Root) -> None:
    with pytest.raises(InvalidRequestError, match="found the action kill"), sparklog_root.failpoints(setting):
        pass
    failpoint("put.linked")
    assert failpoints.VARIABLE not in os.environ
