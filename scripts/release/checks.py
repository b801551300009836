"""What can be seen of the packages without installing them."""

import email.parser
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path

from scripts.release.running import TREE, ReleaseError, run, tool

LIBRARY = "sparklog/format/_kernels.so"
# One of each kind; the first by which its absence would be noticed by a user only after the installation.
NEEDED = (
    LIBRARY,
    "sparklog/py.typed",
    "sparklog_server/py.typed",
    "pyspark_sparklog/__init__.py",
    "sparklog/console/templates/",
    "sparklog/console/static/",
    "sparklog_server/conf/server.properties",
    "sparklog_server/conf/grafana-dashboard.json",
    "sparklog_server/conf/prometheus-alerts.yml",
)
BARRED = re.compile(r"(^|/)(tests|benchmarks|scripts|notebooks)/|\.pyc$|(^|/)\.")
RESERVED = ".example/"  # RFC 2606: the addresses that can never be anybody's


def check_versions() -> str:
    """Return the version, which is the same everywhere."""
    project = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]
    version = str(project["version"])
    if f'__version__ = "{version}"' not in (TREE / "sparklog" / "__init__.py").read_text():
        raise ReleaseError(f"sparklog/__init__.py: expected __version__ {version}, as in pyproject.toml")
    if not re.search(rf"^## {re.escape(version)}\b", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md: expected a heading of {version}: run `make changelog`")
    return version


def check_packages(sdist: Path, wheels: list[Path]) -> None:
    """Check metadata, contents and platforms of what was built."""
    run([tool("twine"), "check", "--strict", sdist, *wheels])
    run([tool("check-wheel-contents"), "--config", TREE / "pyproject.toml", *wheels])
    contents = [_names(wheel) for wheel in wheels]
    for wheel, names in zip(wheels, contents, strict=True):
        if names != contents[0]:
            raise ReleaseError(f"{wheel.name}: has other files than {wheels[0].name}: {names ^ contents[0]}")
        if missing := [name for name in NEEDED if not any(found.startswith(name) for found in names)]:
            raise ReleaseError(f"{wheel.name}: lacks {', '.join(missing)}")
        if barred := [name for name in names if BARRED.search(name)]:
            raise ReleaseError(f"{wheel.name}: has {', '.join(sorted(barred)[:5])}")
        _check_links(wheel)
        if "manylinux" in wheel.name:
            shown = " ".join(run([tool("auditwheel"), "show", wheel]).split())
            if f'following platform tag: "{wheel.stem.rpartition("-")[2]}"' not in shown:
                raise ReleaseError(f"{wheel.name}: {shown}")
    with tarfile.open(sdist) as opened:
        if barred := [name for name in opened.getnames() if re.search(r"/(tests|benchmarks)/", name)]:
            raise ReleaseError(f"{sdist.name}: has {barred[0]}")


def left_to_decide() -> list[str]:
    """Return what no program can decide, and what stands in the way of publishing."""
    urls = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["urls"]
    invented = [f"the address {url} ([project.urls])" for url in urls.values() if RESERVED in url]
    heading = re.search(r"^## .*\(unreleased\).*$", (TREE / "CHANGELOG.md").read_text(), re.MULTILINE)
    return [*invented[:1], *([f"the heading {heading.group()!r} in CHANGELOG.md"] if heading else [])]


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as opened:
        return set(opened.namelist())


def _check_links(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = email.parser.Parser().parsestr(opened.read(name).decode())
    relative = re.findall(r"\]\((?![a-z]+:|#)[^)]*\)", str(metadata.get_payload()))
    if relative:
        raise ReleaseError(f"{wheel.name}: its description has links that lead nowhere: {relative[:3]}")
