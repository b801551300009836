"""The wheels, installed as a user does it: in an empty environment, without a compiler, on each Python."""

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.release.running import TREE, ReleaseError, folder_bytes, run, without_compiler

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
PROJECT_FILES = re.compile(r"```(?:python|toml)\n# ([\w./]+)\n(.*?)```", re.DOTALL)
LINES = "a\nb\nc\n"
SPARKS_EXTRAS = "spark,server,s3,schemas"


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An installation that has been tried."""

    what: str
    python: str
    seconds: float
    size_bytes: int
    tried: str


def find_pythons(given: list[str]) -> dict[str, Path]:
    """Return an interpreter for each supported version that this machine has; `given` come first."""
    found: dict[str, Path] = {}
    for name in [*given, *(f"python{version}" for version in VERSIONS)]:
        try:  # version managers leave commands on the PATH that only print an error
            version = run([name, "-c", "import sys; print('{}.{}'.format(*sys.version_info))"]).strip()
        except (OSError, ReleaseError):
            if name in given:
                raise
        else:
            found.setdefault(version, Path(shutil.which(name) or name))
    return {version: found[version] for version in VERSIONS if version in found}


def try_server(version: str, python: Path, wheel: Path, work: Path) -> list[Installed]:
    """Install the wheel alone, and try the log; with `server`, a broker; with `testing`, its fixtures."""
    venv = _made(python, work / f"venv-{version}")
    alone = _install(venv, str(wheel), version, tried="produce, consume, doctor")
    _try_log(venv, work / f"log-{version}")
    extra = _install(venv, f"{wheel}[server]", version, tried="a broker; consume through it")
    _try_broker(venv, work / f"log-{version}")
    what = f"{wheel}[testing]"
    testing = _install(venv, what, version, "confluent-kafka", tried="the example of docs/testing.md")
    _try_testing(venv, work / f"project-{version}")
    return [alone, extra, testing]


def try_spark(version: str, python: Path, wheel: Path, work: Path) -> tuple[Installed, Path]:
    """Install every extra that users have, and run README's first example; also return that Python."""
    venv = _made(python, work / f"venv-spark-{version}")
    constraints = ("-c", str(TREE / "constraints.txt"))
    what = f"{wheel}[{SPARKS_EXTRAS}]"
    installed = _install(venv, what, version, *constraints, tried="README's first example, with Spark")
    found = EXAMPLE.search((TREE / "README.md").read_text())
    if found is None:
        raise ReleaseError("README.md: expected an example in Python, and what it prints")
    code, shown = found.groups()
    place = work / f"readme-{version}"
    script = place / "example.py"
    place.mkdir()
    script.write_text(re.sub(r"/tmp/([\w-]+)", rf"{place}/\1", code))  # noqa: S108 - README's own path
    hidden = {"PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_HOME"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    printed = run([venv / "bin" / "python", script], cwd=place, environment=environment)
    if shown.strip() not in printed:
        raise ReleaseError(f"README.md: its first example printed\n{printed}\nand not\n{shown}")
    return installed, venv / "bin" / "python"


def try_crossed(wheel: Path, system: Path, work: Path) -> Installed:
    """Try the wheel for aarch64 with that platform's Python, in an emulator.

    Args:
        system: where scripts/release/aarch64.sh has put a Debian of that platform.
    """
    (python,) = system.glob("usr/bin/python3.1[0-9]")
    version = python.name.removeprefix("python")
    target = work / "aarch64"
    names = [f"manylinux_2_{minor}_aarch64" for minor in (17, 27, 28, 34, 36)] + ["manylinux2014_aarch64"]
    platforms = [word for name in names for word in ("--platform", name)]
    own = _made(Path(shutil.which("python3") or "python3"), work / "venv-crossing") / "bin" / "python"
    started = time.monotonic()
    words = [own, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:"]
    words += [*platforms, "--implementation", "cp", "--python-version", version, "--target", target]
    run([*words, wheel])
    seconds = time.monotonic() - started
    emulated: list[object] = ["qemu-aarch64-static", "-L", system, python, "-P", "-m", "sparklog"]
    environment = {**os.environ, "PYTHONPATH": str(target)}
    produced_and_consumed(emulated, work / "log-aarch64", environment)
    return Installed(
        what="sparklog, aarch64",
        python=version,
        seconds=seconds,
        size_bytes=folder_bytes(target),
        tried="produce, consume (QEMU)",
    )


def produced_and_consumed(sparklog: Sequence[object], root: Path, environment: dict[str, str]) -> None:
    """Write records with the command line, compressed, and read them again."""
    words = [*sparklog, "--root", root]
    run(
        [*words, "topics", "create", "--topic", "t", "--config", "compression.type=zstd"],
        environment=environment,
    )
    run([*words, "produce", "--topic", "t"], environment=environment, text=LINES)
    found = run([*words, "consume", "--topic", "t", "-e"], environment=environment)
    if found != LINES:
        raise ReleaseError(f"consume printed {found!r}, expected {LINES!r}")


def _try_log(venv: Path, root: Path) -> None:
    environment = without_compiler(venv)
    produced_and_consumed([venv / "bin" / "sparklog"], root, environment)
    checks = subprocess.run(  # noqa: S603 - our own words
        [venv / "bin" / "sparklog", "--root", root, "doctor"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    if "Traceback" in checks.stdout + checks.stderr:
        raise ReleaseError(f"sparklog doctor:\n{checks.stderr[-2000:]}")


def _try_testing(venv: Path, project: Path) -> None:
    """An outside project's tests find the fixtures by the entry point."""
    for name, text in PROJECT_FILES.findall((TREE / "docs" / "testing.md").read_text()):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    run([venv / "bin" / "python", "-m", "pytest", "-q"], cwd=project, environment=without_compiler(venv))


def _try_broker(venv: Path, root: Path) -> None:
    environment = without_compiler(venv)
    words = [str(venv / "bin" / "sparklog-server")]
    printed = run([*words, "--print-config"], environment=environment)
    if "num.partitions" not in printed:
        raise ReleaseError(f"sparklog-server --print-config printed {printed[:200]!r}")
    words += ["--root", str(root), "--listeners", "PLAINTEXT://127.0.0.1:0"]
    broker = subprocess.Popen(  # noqa: S603 - our own words
        words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert broker.stdout is not None
        watchdog = threading.Timer(60, broker.kill)  # ends a `readline` of a broker that hangs
        watchdog.daemon = True
        watchdog.start()
        address = broker.stdout.readline().strip().rpartition("://")[2]
        watchdog.cancel()
        consume = [venv / "bin" / "sparklog", "--bootstrap-server", address, "consume", "--topic", "t", "-e"]
        found = run(consume, environment=environment)
        broker.terminate()
        code = broker.wait(60)
    finally:
        broker.kill()
        broker.wait()
    if (found, code) != (LINES, 0):
        raise ReleaseError(f"through the broker came {found!r}, expected {LINES!r}; it ended with {code}")


def _made(python: Path, venv: Path) -> Path:
    run([python, "-m", "venv", venv])
    return venv


def _install(venv: Path, what: str, version: str, *more: str, tried: str) -> Installed:
    """Install from wheels only, but for PySpark, which has none and needs no compiler."""
    before = folder_bytes(venv)
    started = time.monotonic()
    words = [venv / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    run(
        [*words, "--only-binary=:all:", "--no-binary=pyspark", what, *more],
        environment=without_compiler(venv),
    )
    return Installed(
        what="sparklog" + what.partition(".whl")[2],
        python=version,
        seconds=time.monotonic() - started,
        size_bytes=folder_bytes(venv) - before,
        tried=tried,
    )
