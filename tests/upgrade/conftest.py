"""Two versions: the release before, installed from its wheel, and this tree. `make test-upgrade`."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.upgrade.programs import BrokerOf, Programs

OLDER = "SPARKLOG_OLDER_PYTHON"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without an older release there is nothing to compare."""
    for item in items:
        if item.path.parent == Path(__file__).parent and OLDER not in os.environ:
            item.add_marker(pytest.mark.skip(f"needs {OLDER}: make test-upgrade"))


@pytest.fixture
def older() -> Programs:
    """The programs of the release before."""
    return Programs("older", os.environ[OLDER])


@pytest.fixture
def newer() -> Programs:
    """The programs of this tree."""
    return Programs("newer", sys.executable)


@pytest.fixture(params=["upgrade", "rollback"])
def before_and_after(
    request: pytest.FixtureRequest, older: Programs, newer: Programs
) -> tuple[Programs, Programs]:
    """Which one goes first: as in an upgrade, or as in going back."""
    return (older, newer) if request.param == "upgrade" else (newer, older)


@pytest.fixture
def start_broker(tmp_path: Path) -> Iterator[Callable[..., BrokerOf]]:
    """Start brokers of any version on the test's root: start_broker(older, {"node.id": "2"})."""
    started: list[BrokerOf] = []

    def start(programs: Programs, settings: dict[str, str] | None = None) -> BrokerOf:
        started.append(BrokerOf(programs, tmp_path / "root", settings))
        return started[-1]

    yield start
    for broker in started:
        broker.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"
