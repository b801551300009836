"""The pytest plugin: fixtures for tests of programs that use sparklog. docs/testing.md.

Every run of pytest in an environment with sparklog loads this module: it imports nothing large.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from sparklog.testing import Broker, Root

_SCOPES = ("session", "package", "module", "class", "function")
# A test's groups should not wait, and nothing should work in the background of a test.
_QUICK = {
    "group.initial.rebalance.delay.ms": "0",
    "initial.broker.registration.timeout.ms": "0",
    "log.cleaner.enable": "false",
    "offsets.topic.num.partitions": "1",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """The one setting."""
    parser.addini(
        "sparklog_broker_scope", f"how long a broker lives: {', '.join(_SCOPES)}", default="session"
    )


def _scope(fixture_name: str, config: pytest.Config) -> Any:  # noqa: ARG001 - pytest passes both by name
    scope = str(config.getini("sparklog_broker_scope"))
    if scope not in _SCOPES:
        known = ", ".join(_SCOPES)
        raise pytest.UsageError(f"sparklog_broker_scope: found {scope!r}, expected one of {known}")
    return scope


@pytest.fixture
def sparklog_root(tmp_path: Path) -> "Iterator[Root]":
    """A root of the test's own that does not exist yet: .open(), .failpoints(...)."""
    from sparklog.testing.root import Root  # noqa: PLC0415 - as the module's docstring says

    root = Root(str(tmp_path / "sparklog-root"))
    yield root
    root.close()


@pytest.fixture(scope=_scope)
def sparklog_broker_settings() -> dict[str, str]:
    """Settings of `sparklog_broker`; override it in a module or conftest.py."""
    return {}


@pytest.fixture(scope=_scope)
def sparklog_broker(
    tmp_path_factory: pytest.TempPathFactory, sparklog_broker_settings: dict[str, str]
) -> "Iterator[Broker]":
    """A broker as a process, on a free port of 127.0.0.1: .bootstrap_servers, .root, .killed(), ..."""
    from sparklog.testing.broker import Broker  # noqa: PLC0415 - as above

    broker = Broker(tmp_path_factory.mktemp("sparklog") / "root", {**_QUICK, **sparklog_broker_settings})
    try:
        yield broker
        assert broker.is_running(), f"the broker ended by itself\n{broker.errors()}"
        code = broker.stop()
        assert code == 0, f"the broker ended with {code}\n{broker.errors()}"
    finally:
        broker.close()
