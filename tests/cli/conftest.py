"""What the command-line tests share: a root of their own, and a way to run commands."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sparklog.cli.main import cli

Run = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root that every command of the test works on."""
    monkeypatch.setenv("SPARKLOG_ROOT", str(tmp_path / "log"))
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path / "log"


@pytest.fixture
def run(root: Path) -> Run:
    """Run a command; by default it must succeed."""
    assert root.name == "log"

    def run_command(*arguments: str, stdin: str | bytes | None = None, exit_code: int = 0) -> Result:
        result = CliRunner().invoke(cli, arguments, input=stdin, prog_name="sparklog")
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == exit_code, result.output
        return result

    return run_command


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """Run a command with --output json and parse what it prints."""

    def run_command(*arguments: str, stdin: str | None = None) -> Any:
        return json.loads(run(*arguments, "--output", "json", stdin=stdin).stdout)

    return run_command
