"""Files of settings: Java's properties, and references to values that are kept elsewhere.

    password=${env:KAFKA_PASSWORD}            the environment
    password=${file:/run/secrets/kafka}       the content of a file, without the line feed at its end
    password=${file:/etc/secrets.properties:kafka.password}     a key of a properties file, as in Kafka

Invariants: an error names the setting, the file and the reference, never a value. What a reference yields is
    not searched for references.
Not here: the meaning of settings.
Sources: Java's Properties; Kafka EnvVarConfigProvider, FileConfigProvider; KIP-297.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from sparklog.errors import InvalidRequestError

_REFERENCE = re.compile(r"\$\{(env|file):([^}]+)\}")
_MAX_FILE_BYTES = 1 << 20
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_PAIR = re.compile(r"((?:\\.|[^\\=:\s])*)(?:\s*[=:]\s*|\s+|$)(.*)", re.DOTALL)


def read_properties(path: Path) -> dict[str, str]:
    """Return the settings of a file, with references replaced.

    Raises:
        InvalidRequestError: INVALID_CLIENT_CONFIG; it cannot be read, or a reference cannot be.
    """
    return resolved(parse_properties(_text_of(path, str(path))), str(path), os.environ)


def parse_properties(text: str) -> dict[str, str]:
    """Parse Java's format: comments, escapes, and lines that a backslash continues."""
    found = {}
    lines = iter(text.splitlines())
    for line in lines:
        whole = line.lstrip()
        if not whole or whole[0] in "#!":
            continue
        while _is_continued(whole):
            whole = whole[:-1] + next(lines, "").lstrip()
        match = _PAIR.fullmatch(whole)
        if match is not None:
            found[_unescaped(match[1])] = _unescaped(match[2]).rstrip()
    return found


def resolved(settings: Mapping[str, str], where: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with references replaced.

    Raises:
        InvalidRequestError: INVALID_CLIENT_CONFIG; a variable, a file or a key does not exist.
    """
    return {
        key: _REFERENCE.sub(lambda found, key=key: _value(found, f"{where}: {key}", environment), text)  # type: ignore[misc]
        for key, text in settings.items()
    }


def _value(reference: re.Match[str], where: str, environment: Mapping[str, str]) -> str:
    kind, name = reference[1], reference[2]
    if kind == "env":
        if name not in environment:
            raise _missing(where, reference[0], "no such variable")
        return environment[name]
    path, _, key = name.rpartition(":")
    if not path or "/" in key:
        return _text_of(Path(name), f"{where}: {reference[0]}").removesuffix("\n").removesuffix("\r")
    of_file = parse_properties(_text_of(Path(path), f"{where}: {reference[0]}"))
    if key not in of_file:
        raise _missing(where, reference[0], "the file has no such key")
    return of_file[key]


def _text_of(path: Path, where: str) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8"
        raise InvalidRequestError(
            "INVALID_CLIENT_CONFIG", f"{where}: {reason}", fix="name a readable file"
        ) from None


def _missing(where: str, reference: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_CLIENT_CONFIG",
        f"{where}: found {reference}, but {why}",
        fix="set it, or correct the reference",
    )


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _unescaped(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) == 5 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(replaced, text)
