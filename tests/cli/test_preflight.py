import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "preflight.sh"
TOOLS = ("sh", "sed", "head")


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with a shell and nothing else."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found
        (directory / tool).symlink_to(found)
    return directory


def add(directory: Path, name: str, text: str) -> None:
    (directory / name).write_text(f"#!{shutil.which('sh')}\n{text}\n")
    (directory / name).chmod(0o755)


def run(path: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", str(SCRIPT), *arguments],
        env={"PATH": str(path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def good_python(path: Path) -> None:
    add(path, "python3.12", 'case "$2" in *"print(sys.executable)"*) echo /opt/python3.12;; esac')


def test_names_python_when_there_is_none(bare_path: Path) -> None:
    result = run(bare_path)
    assert result.returncode == 1
    assert result.stderr.startswith("Python 3.11 or newer (with venv) is missing: install it with")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_shim_that_only_prints_an_error_is_passed_over(bare_path: Path) -> None:
    add(bare_path, "python3.11", "echo 'pyenv: command not found' >&2; exit 127")
    good_python(bare_path)
    assert run(bare_path).stdout == "/opt/python3.12\n"


def test_named_python_that_does_not_run_is_refused(bare_path: Path) -> None:
    good_python(bare_path)
    result = run(bare_path, PYTHON="/nowhere/python")
    assert result.returncode == 1
    assert "PYTHON=/nowhere/python does not run" in result.stderr


def test_names_java_when_there_is_none(bare_path: Path) -> None:
    good_python(bare_path)
    result = run(bare_path, "--java")
    assert result.returncode == 1
    assert result.stderr.startswith("Java 17 or newer is missing (tried to run 'java'): install it with")
    assert result.stderr.count("\n") == 1


def test_old_java_and_wrong_java_home_are_named(bare_path: Path) -> None:
    good_python(bare_path)
    add(bare_path, "java", "echo 'openjdk version \"11.0.2\" 2019-01-15' >&2")
    assert "'java' is Java 11" in run(bare_path, "--java").stderr
    assert "/nowhere/bin/java" in run(bare_path, "--java", JAVA_HOME="/nowhere").stderr


def test_java_without_the_vector_module_is_named(bare_path: Path) -> None:
    good_python(bare_path)
    add(bare_path, "java", '[ "$1" = --add-modules ] && exit 1\necho \'openjdk version "17.0.1"\' >&2')
    assert "without the module jdk.incubator.vector" in run(bare_path, "--java").stderr


def test_this_machine_passes() -> None:
    result = run(Path(os.environ["PATH"]), "--java", **{k: v for k, v in os.environ.items() if k != "PATH"})
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_file()
