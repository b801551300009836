"""The bill of materials (CycloneDX) of an installation with every extra that users have, and its licences."""

import json
import re
from pathlib import Path
from typing import Any

from scripts.release.running import TREE, ReleaseError, run, tool

STATIC = TREE / "sparklog" / "console" / "static"
# Scripts that the console brings along, and not pip. Their licences lie next to them.
VENDORED = re.compile(r"(.+)-(\d[\d.]*)\.min\.js")
VENDORED_LICENCES = {"htmx": "0BSD", "htmx-ext-sse": "0BSD", "uplot": "MIT"}
VENDORED_NAMES = {"htmx": "htmx.org"}

PERMISSIVE = re.compile(
    r"\b(0BSD|Apache|BSD|CNRI-Python|HPND|ISC|MIT|MIT-0|MIT-CMU|PSF|Python|Zlib|Unlicense)\b", re.IGNORECASE
)
OTHERS = re.compile(r"\b(AGPL|GPL|LGPL|MPL|EPL|CDDL|SSPL|BUSL|Affero|Lesser|Mozilla)", re.IGNORECASE)
# Those that are not permissive, each with the reason why it may be there.
ACCEPTED = {
    "crc32c": "LGPL-2.1-or-later: a package of its own, imported and not copied; anybody can replace it",
    "pyzmq": "MPL-2.0 in part: unchanged, and only for notebooks",
    "certifi": "MPL-2.0: unchanged data",
}
# They say nothing in their metadata; read by hand in their wheels.
READ_BY_HAND = {"protobuf": "BSD-3-Clause"}


def write_bill(python: Path, output: Path) -> Path:
    """Write what is installed with this Python, and what the console brings along, as CycloneDX in JSON."""
    words = [tool("cyclonedx-py"), "environment", "--of", "JSON", "--sv", "1.6", "--output-reproducible"]
    bill = json.loads(run([*words, "--pyproject", TREE / "pyproject.toml", "--mc-type", "library", python]))
    bill["components"] = [c for c in bill["components"] if c["name"] not in {"pip", "setuptools", "sparklog"}]
    bill["components"] += [_vendored(path) for path in sorted(STATIC.glob("*.min.js"))]
    names = {component["bom-ref"] for component in bill["components"]} | {"root-component"}
    bill["dependencies"] = [
        {"ref": edge["ref"], "dependsOn": [to for to in edge.get("dependsOn", ()) if to in names]}
        for edge in bill["dependencies"]
        if edge["ref"] in names
    ]
    output.write_text(json.dumps(bill, indent=1) + "\n")
    return output


def check_licences(bill: Path) -> list[str]:
    """Return what is not permissive and accepted.

    Raises: ReleaseError: a licence that is not in the reviewed list.
    """
    noted, unknown = [], []
    for component in json.loads(bill.read_text())["components"]:
        name = component["name"]
        licence = " | ".join(_licences(component)) or READ_BY_HAND.get(name, "")
        if OTHERS.search(licence) and name in ACCEPTED:
            noted.append(f"{name} {component['version']}: {ACCEPTED[name]}")
        elif OTHERS.search(licence) or not PERMISSIVE.search(licence):
            unknown.append(f"{name} {component['version']}: {licence[:200] or 'no licence'}")
    if unknown:
        raise ReleaseError("licences to look at (scripts/release/licences.py):\n" + "\n".join(unknown))
    return noted


def _licences(component: dict[str, Any]) -> list[str]:
    said = component.get("licenses", ())
    inner = [entry.get("license", entry) for entry in said]
    return [str(found.get("id") or found.get("expression") or found.get("name")) for found in inner]


def _vendored(path: Path) -> dict[str, Any]:
    found = VENDORED.fullmatch(path.name)
    if found is None or found[1] not in VENDORED_LICENCES:
        raise ReleaseError(f"{path}: expected NAME-VERSION.min.js, with its licence in VENDORED_LICENCES")
    name, version = VENDORED_NAMES.get(found[1], found[1]), found[2]
    purl = f"pkg:npm/{name}@{version}"
    licence = [{"license": {"id": VENDORED_LICENCES[found[1]]}}]
    return {
        "bom-ref": purl,
        "licenses": licence,
        "name": name,
        "purl": purl,
        "type": "library",
        "version": version,
    }
