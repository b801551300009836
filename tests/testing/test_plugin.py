"""The pytest plugin, as an outside project uses it."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
FILES = re.compile(r"```(?:python|toml)\n# ([\w./]+)\n(.*?)```", re.DOTALL)
INSTALLED = "sparklog.testing.plugin"


def run_pytest(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run an outside project's tests, as where sparklog is installed with its entry point."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", INSTALLED, "-p", "no:randomly", "-p", "no:xdist"]
    return subprocess.run(
        [*command, *words], cwd=project, capture_output=True, text=True, check=False, timeout=240
    )


def write_project(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_the_example_of_the_page_passes(tmp_path: Path) -> None:
    files = dict(FILES.findall(PAGE.read_text()))
    assert {"pyproject.toml", "shop.py", "tests/test_shop.py"} <= set(files)
    done = run_pytest(write_project(tmp_path, files))
    assert done.returncode == 0, done.stdout + done.stderr
    tests = sum(text.count("\ndef test_") for text in files.values())
    assert f"{tests} passed" in done.stdout


@pytest.mark.exhaustive
@pytest.mark.parametrize(("scope", "brokers"), [("session", 1), ("module", 2), ("function", 4)])
def test_brokers_live_as_long_as_the_setting_says(scope: str, brokers: int, tmp_path: Path) -> None:
    test = "def test_{n}(sparklog_broker): print('pid', sparklog_broker.process.pid)\n"
    modules = {f"test_{m}.py": "".join(test.format(n=n) for n in "ab") for m in "cd"}
    write_project(tmp_path, modules)
    done = run_pytest(tmp_path, "-s", "-o", f"sparklog_broker_scope={scope}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(set(re.findall(r"pid (\d+)", done.stdout))) == brokers


def test_an_unknown_scope_is_refused(tmp_path: Path) -> None:
    write_project(tmp_path, {"test_a.py": "def test_a(sparklog_broker): pass\n"})
    done = run_pytest(tmp_path, "-o", "sparklog_broker_scope=forever")
    assert done.returncode != 0
    assert "found 'forever', expected one of session, package, module" in done.stdout + done.stderr


@pytest.mark.exhaustive
def test_settings_are_overridden_by_a_fixture(tmp_path: Path) -> None:
    code = """
import pytest

@pytest.fixture(scope="session")
def sparklog_broker_settings():
    return {"num.partitions": "7"}

def test_a(sparklog_broker):
    assert sparklog_broker.settings["num.partitions"] == "7"
    assert sparklog_broker.settings["group.initial.rebalance.delay.ms"] == "0"
"""
    done = run_pytest(write_project(tmp_path, {"test_a.py": code}))
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_broker_that_dies_fails_the_run(tmp_path: Path) -> None:
    code = "def test_a(sparklog_broker): sparklog_broker.kill()\n"
    done = run_pytest(write_project(tmp_path, {"test_a.py": code}))
    assert done.returncode == 1
    assert "the broker ended by itself" in done.stdout


def test_loading_the_plugin_imports_nothing_large() -> None:
    large = {"pyarrow", "numpy", "msgspec", "click", "sparklog.client", "sparklog_server"}
    code = f"import sys, {INSTALLED}; print(sorted({large!r} & set(sys.modules)))"
    words = [sys.executable, "-c", code]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[]\n"
