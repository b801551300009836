"""`sparklog console`: where it listens, and who may call it."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from tests.cli.conftest import Run


@contextlib.contextmanager
def serving(root: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A console of the root, and its address."""
    command = [sys.executable, "-m", "sparklog", "console", "--root", str(root), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            found = re.search(r"http://127\.0\.0\.1:\d+/", line)
            assert found is not None, line
            yield process, found[0]
        finally:
            process.kill()


@pytest.mark.slow
def test_a_root_is_served_until_ctrl_c(run: Run, root: Path) -> None:
    run("topics", "create", "--topic", "orders")
    with serving(root) as (process, address):
        with urllib.request.urlopen(f"{address}topics", timeout=30) as answer:
            assert "/topics/orders" in answer.read().decode()
        foreign = urllib.request.Request(address, headers={"Host": "evil.example"})
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            urllib.request.urlopen(foreign, timeout=30)
        refused.value.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Listening, and ending."""
    monkeypatch.setattr(uvicorn.Server, "run", lambda _server, sockets: None)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_foreign_name_leads_to_it(run: Run, monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """A page of another site, whose name points here, would read the root."""
    apps: list[Starlette] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: apps.append(server.config.app))
    run("topics", "create", "--topic", "orders")
    run("console", "--port", "0", "--host", host)
    for name, status in ((socket.gethostname(), 200), ("127.0.0.1", 200), ("evil.example", 400)):
        with TestClient(apps[0], base_url=f"http://{name}") as client:
            assert client.get("/topics").status_code == status


@pytest.mark.usefixtures("unserved")
def test_others_are_warned_about(run: Run) -> None:
    run("topics", "create", "--topic", "orders")
    assert "Warning" not in run("console", "--port", "0").stderr
    shown = run("console", "--port", "0", "--host", "0.0.0.0").stderr
    assert "Warning: everybody who reaches 0.0.0.0 may read this root: there is no login." in shown


@pytest.mark.usefixtures("unserved")
def test_others_may_change_nothing(run: Run) -> None:
    answer = run("console", "--host", "0.0.0.0", "--write", exit_code=2)
    assert "--write needs a loopback address" in answer.stderr


def test_a_port_that_is_taken_is_an_error(run: Run) -> None:
    run("topics", "create", "--topic", "orders")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        shown = run("console", "--port", str(taken.getsockname()[1]), exit_code=1).stderr
    assert "Address already in use" in shown


def test_a_root_must_be_there(run: Run) -> None:
    assert "ROOT_NOT_FOUND" in run("console", exit_code=1).stderr


def test_what_to_install_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("sparklog.console.app", "jinja2"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install 'sparklog[console]'" in run("console", exit_code=1).stderr
