"""A declared setting: its key, type, bounds and documentation, and the parser of its text.

Invariants: `parse` accepts exactly what `bounds` says; a key that is not declared is refused with
    the nearest declared one, never ignored.
Not here: the declarations themselves (config.py).
Sources: Kafka ConfigDef.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from sparklog.errors import InvalidRequestError

LONG_MAX = (1 << 63) - 1
_LONGEST_KEY = 100  # longer keys get no suggestion
_ALIKE = 0.5  # share of equal pairs from which a key counts as a misspelling of another
TYPE_NAMES = {int: "integer", float: "number", bool: "boolean", str: "string", tuple: "list"}
ConfigT = TypeVar("ConfigT")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A declared key: its type, its bounds, and the trade-off between smaller and larger values (`doc`)."""

    key: str
    kind: type
    unit: str
    default: Any
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    doc: str
    may_be_empty: bool = False
    excluded: tuple[float, ...] = ()
    is_secret: bool = False

    @property
    def bounds(self) -> str:
        """The bounds, in words."""
        if self.kind is bool:
            return "true or false"
        if self.choices:
            joined = ", ".join(self.choices)
            if self.kind is tuple:
                return f"any of {joined}" + (", or empty" if self.may_be_empty else "")
            return f"one of {joined}"
        low = "" if self.minimum is None else f"at least {self.minimum}"
        high = "" if self.maximum is None or self.maximum >= LONG_MAX else f"at most {self.maximum}"
        but = "".join(f", but not {value}" for value in self.excluded)
        return " and ".join(part for part in (low, high) if part) + but

    def format(self, value: Any) -> str:
        """Return the text that `parse` turns into this value."""
        if self.kind is bool:
            return "true" if value else "false"
        return ",".join(value) if self.kind is tuple else str(value)

    def parse(self, text: str) -> Any:
        """Return the typed value of `text`; raise if it is out of bounds."""
        cleaned = text.strip()
        try:
            value = self._convert(cleaned)
        except ValueError:
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"{self.key}: found {text!r}, expected {TYPE_NAMES[self.kind]}, {self.bounds}",
                fix=f"Give {self.key} a value that is {self.bounds}",
            ) from None
        self._validate_bounds(value, text)
        return value

    def _convert(self, text: str) -> Any:
        if self.kind is bool:
            if text.lower() not in {"true", "false"}:
                raise ValueError(text)
            return text.lower() == "true"
        if self.kind is tuple:
            items = tuple(item.strip() for item in text.split(",") if item.strip())
            is_missing = not items and not (self.may_be_empty and not text)
            if is_missing or not set(items) <= set(self.choices) or len(set(items)) != len(items):
                raise ValueError(text)
            return items
        if self.choices and text not in self.choices:
            raise ValueError(text)
        if self.kind in (int, float) and (not text.isascii() or "_" in text):
            raise ValueError(text)  # a spelling of numbers that only Python accepts
        return self.kind(text)

    def _validate_bounds(self, value: Any, text: str) -> None:
        if self.kind not in (int, float):
            return
        low_ok = self.minimum is None or value >= self.minimum
        high_ok = self.maximum is None or value <= self.maximum
        if not (low_ok and high_ok) or value in self.excluded:  # written so that NaN fails both
            bound = f"the minimum {self.minimum}" if not low_ok else f"the maximum {self.maximum}"
            bound = f"what is allowed, {self.bounds}" if value in self.excluded else bound
            raise InvalidRequestError(
                "CONFIG_OUT_OF_BOUNDS",
                f"{self.key}: found {text}, outside {bound} ({self.unit})",
                fix=f"Give {self.key} a value that is {self.bounds}",
            )


def setting(
    key: str,
    *,
    default: Any,
    doc: str,
    unit: str | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    may_be_empty: bool = False,
    excluded: tuple[float, ...] = (),
    is_secret: bool = False,
) -> Any:
    """Declare a field of a configuration class.

    Args:
        unit: by default that with which the key ends, ms or bytes.
        excluded: values between the bounds that are not allowed.
        is_secret: the value is in no answer, log, error or repr, and not taken from a command line.
    """
    declared = Setting(
        key=key,
        kind=type(default),
        unit=_unit_of(key) if unit is None else unit,
        default=default,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        doc=" ".join(doc.split()),
        may_be_empty=may_be_empty,
        excluded=excluded,
        is_secret=is_secret,
    )
    return dataclasses.field(default=default, repr=not is_secret, metadata={"setting": declared})


def _unit_of(key: str) -> str:
    unit = key.rpartition(".")[2]
    return unit if unit in {"ms", "bytes"} else ""


def declared_settings(cls: type) -> dict[str, tuple[str, Setting]]:
    """Return key -> (field name, declaration), sorted by key."""
    return _declared(cls)


@functools.cache  # which takes away the annotations
def _declared(cls: Any) -> dict[str, tuple[str, Setting]]:
    declared = {}
    for field in sorted(dataclasses.fields(cls), key=lambda field: str(field.metadata["setting"].key)):
        declaration = cast("Setting", field.metadata["setting"])
        declared[declaration.key] = (field.name, declaration)
    return declared


def parse_settings(cls: type[ConfigT], configs: Mapping[str, str], root: Mapping[str, str]) -> ConfigT:
    """Return an instance of a configuration class: `configs`, else `root`, else the declared defaults."""
    declared = declared_settings(cls)
    values: dict[str, Any] = {}
    for source in (root, configs):
        for key, text in source.items():
            if key in declared:
                name, declaration = declared[key]
                values[name] = declaration.parse(text)
    return cls(**values)


def validate_settings(
    configs: Mapping[str, str], known: Mapping[str, tuple[str, Setting]], scope: str
) -> None:
    for key, text in configs.items():
        declaration = lookup_setting(key, known, scope)
        if not isinstance(text, str):
            raise InvalidRequestError(
                "INVALID_CONFIG_VALUE",
                f"{key}: found {text!r} of type {type(text).__name__}, expected a string",
                fix="Give configuration values as strings",
            )
        declaration.parse(text)


def lookup_setting(key: str, known: Mapping[str, tuple[str, Setting]], scope: str) -> Setting:
    if key in known:
        return known[key][1]
    near = _nearest(key, known)
    hint = f"Use one of {', '.join(known)}" if near is None else f"Write {near!r}"
    if near is not None and near.endswith(".ms") and not key.endswith("ms"):
        hint += ", in milliseconds"  # retention.hours=24 as retention.ms=24 would remove almost everything
    raise InvalidRequestError("UNKNOWN_CONFIG", f"found {scope} setting {key!r}, which is unknown", fix=hint)


def _nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the key with most character pairs in common with this one, if it has at least half of them.

    A request may misspell thousands of keys: difflib takes 300 us for each, this 15.
    """
    pairs = _pairs(key[:_LONGEST_KEY])
    likeness, near = max(
        (2 * len(pairs & others) / (len(pairs) + len(others)), candidate)
        for candidate in known
        for others in [_pairs_of_known(candidate)]
    )
    return near if likeness >= _ALIKE else None


@functools.cache
def _pairs_of_known(key: str) -> frozenset[str]:
    return _pairs(key)


def _pairs(key: str) -> frozenset[str]:
    """Return the pairs of neighbouring characters, with the ends padded, so that every key has some."""
    padded = f" {key} "
    return frozenset(map("".join, itertools.pairwise(padded)))
