"""What of `make release` needs no build: it should not fail on the day of a release."""

import json
import tomllib
import zipfile
from pathlib import Path

import pytest

from scripts.release.building import TESTED, UNTESTED
from scripts.release.checks import check_packages, check_versions, left_to_decide
from scripts.release.installing import EXAMPLE, PROJECT_FILES, find_pythons
from scripts.release.licences import check_licences
from scripts.release.running import TREE, ReleaseError


def bill(tmp_path: Path, *components: dict[str, object]) -> Path:
    file = tmp_path / "bill.json"
    file.write_text(json.dumps({"components": [{"version": "1", **component} for component in components]}))
    return file


def licensed(component: str, **licence: str) -> dict[str, object]:
    return {"name": component, "licenses": [{"license": licence}] if licence else []}


def test_the_version_is_the_same_everywhere() -> None:
    assert check_versions() == tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["version"]


def test_the_examples_are_found() -> None:
    assert EXAMPLE.search((TREE / "README.md").read_text())
    assert len(PROJECT_FILES.findall((TREE / "docs" / "testing.md").read_text())) == 3


def test_a_licence_that_nobody_has_accepted_stops_a_release(tmp_path: Path) -> None:
    permissive = [licensed("a", id="MIT"), licensed("b", name="License :: OSI Approved :: BSD License")]
    assert check_licences(bill(tmp_path, *permissive, licensed("c", id="PSF-2.0"))) == []
    (noted,) = check_licences(bill(tmp_path, licensed("crc32c", id="LGPL-2.1-or-later")))
    assert noted.startswith("crc32c 1: LGPL")
    for unknown in (licensed("d", id="GPL-3.0"), licensed("e", id="AGPL-3.0-only"), licensed("f")):
        with pytest.raises(ReleaseError, match="licences to look at"):
            check_licences(bill(tmp_path, *permissive, unknown))


def test_both_kinds_of_platforms_have_names_that_a_build_takes() -> None:
    assert [name.partition("_")[0] for name in (*TESTED, *UNTESTED)] == ["manylinux"] * 2 + ["macosx"] * 2


def test_a_wheel_that_lacks_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.release.checks.run", lambda *_: "")
    wheel = tmp_path / "sparklog-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as opened:
        opened.writestr("sparklog/py.typed", "")
    with pytest.raises(ReleaseError, match=r"lacks sparklog/format/_kernels\.so, sparklog_server/py\.typed"):
        check_packages(tmp_path / "none.tar.gz", [wheel])


def test_an_address_that_is_nobodys_is_named() -> None:
    urls = tomllib.loads((TREE / "pyproject.toml").read_text())["project"]["urls"]
    named = [what for what in left_to_decide() if "address" in what]
    assert bool(named) == any(".example/" in url for url in urls.values())


@pytest.mark.slow
def test_an_interpreter_that_was_asked_for_must_be_there() -> None:
    with pytest.raises(OSError, match="nothing-here"):
        find_pythons(["/nothing-here/python3.99"])
