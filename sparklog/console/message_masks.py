r"""Masking rules: what a reader of a topic must not see becomes ***.

A rule applies to keys, values or header values of the topics that its glob matches, and masks what a JSON
path or a regular expression (RE2) finds. A regular expression searches the text as it is stored: `\u0034` in
JSON is not 4.

Invariants: masks apply to bytes, before filters and before anything is shown, so that neither another format
    (hex, a download) nor a filter reveals what a mask hides. A field with a rule of JSON paths that is not
    JSON (cut, too large, too deeply nested, or of a schema that is not given) is hidden whole.
Concurrency: pure.
"""

import fnmatch
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.patterns import validated_size
from sparklog.console.message_values import (
    AvroDecoder,
    Decoder,
    PathStep,
    ProtobufDecoder,
    TooDeepError,
    UndecodableError,
    checked,
    no_check,
    parse_json,
    parse_json_path,
    replace_at,
)
from sparklog.errors import HIDDEN, InvalidRequestError
from sparklog.format.schema import HEADER_TYPE, HEADERS_TYPE

Field = Literal["key", "value", "headers"]
_HIDDEN_BYTES: Final = HIDDEN.encode()


class MaskRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A rule: one of `json_path` and `regex`.

    Args:
        topics: a glob.
        fields: without any, a JSON path is for values, and a regular expression for all.
    """

    topics: str = "*"
    fields: tuple[Field, ...] = ()
    json_path: str = ""
    regex: str = ""

    def is_for(self, name: Field) -> bool:
        """True if it masks this field."""
        return name in self.fields if self.fields else name == "value" or bool(self.regex)

    def __post_init__(self) -> None:
        """InvalidRequestError: neither path nor regex, or both, or one that is not correct."""
        if bool(self.json_path) == bool(self.regex):
            raise _invalid(
                f"found json_path {self.json_path!r} and regex {self.regex!r}, expected one of them"
            )
        if self.json_path:
            parse_json_path(self.json_path)
            return
        validated_size(self.regex, of="masks")
        if pc.match_substring_regex(pa.array([""]), pattern=self.regex)[0].as_py():
            raise _invalid(f"found regex {self.regex!r}, which matches an empty text")


def parse_masks(data: bytes) -> tuple[MaskRule, ...]:
    """Read a JSON list of rules: [{"topics": "pay*", "fields": ["value"], "json_path": "$..card"}]."""
    try:
        return msgspec.json.decode(data, type=tuple[MaskRule, ...])
    except msgspec.DecodeError as error:
        raise _invalid(f"found {error}") from error


def _invalid(problem: str) -> InvalidRequestError:
    return InvalidRequestError(
        "INVALID_OPTION",
        f"masking rules: {problem}",
        fix='write them as [{"topics": "pay*", "fields": ["value"], "json_path": "$..card"}]',
    )


class FieldMask:
    """The rules for one field of a topic."""

    def __init__(self, rules: Sequence[MaskRule], decoder: Decoder | None = None) -> None:
        self._paths: list[tuple[PathStep, ...]] = [
            parse_json_path(rule.json_path) for rule in rules if rule.json_path
        ]
        self._regexes = [rule.regex for rule in rules if rule.regex]
        self._decoder = decoder

    @property
    def is_empty(self) -> bool:
        return not self._paths and not self._regexes

    @property
    def decodes(self) -> bool:
        """True if what it returns is decoded already, as JSON."""
        return not self.is_empty and self._decoder is not None

    def applied(self, column: pa.Array, check: Callable[[], None] = no_check) -> pa.Array:
        """Mask a binary column. A loop over its rows only for JSON paths and decoders.

        Args:
            check: raises to end it; it is called often.
        """
        if self._paths or self.decodes:
            column = pa.array(
                [
                    None if value is None else self._masked_document(value, check)
                    for value in checked(column.to_pylist(), check)
                ],
                pa.binary(),
            )
        # As text, though it may not be UTF-8: RE2 matches bytes, and `.` matches no invalid ones.
        for regex in self._regexes:
            column = pc.replace_substring_regex(column.view(pa.string()), pattern=regex, replacement=HIDDEN)
            column = column.view(pa.binary())
        return column

    def _masked_document(self, data: bytes, check: Callable[[], None]) -> bytes:
        try:
            document = self._parsed(data)
            for path in self._paths:
                document = replace_at(document, path, HIDDEN, check)
            return msgspec.json.encode(document)
        except (UndecodableError, RecursionError, ValueError):
            return _HIDDEN_BYTES if self._paths else data

    def _parsed(self, data: bytes) -> object:
        if self._decoder is None:
            return parse_json(data)
        try:
            decoded = self._decoder.decode(data)
        except UndecodableError:
            return parse_json(data)
        if _is_json_document(data):
            raise UndecodableError("both JSON and of the schema: paths may hide the wrong fields")
        return parse_json(decoded)


def _is_json_document(data: bytes) -> bool:
    try:
        return isinstance(parse_json(data), dict | list)
    except TooDeepError:
        return True
    except UndecodableError:
        return False


class Masks:
    """The rules for a topic, by field."""

    def __init__(
        self,
        rules: Iterable[MaskRule],
        topic: str,
        decoders: Mapping[str, Decoder] | None = None,
    ) -> None:
        mine = [rule for rule in rules if fnmatch.fnmatchcase(topic, rule.topics)]
        decoders = decoders or {}
        self.key = FieldMask([rule for rule in mine if rule.is_for("key")], decoders.get("key"))
        self.value = FieldMask([rule for rule in mine if rule.is_for("value")], decoders.get("value"))
        # For filters; a masked value is decoded already.
        self.value_decoder = None if self.value.decodes else decoders.get("value")
        self._headers = FieldMask([rule for rule in mine if rule.is_for("headers")])

    @property
    def is_any(self) -> bool:
        """True if a rule applies to the topic."""
        return not (self.key.is_empty and self.value.is_empty and self._headers.is_empty)

    def column(self, name: str, column: pa.Array, check: Callable[[], None] = no_check) -> pa.Array:
        """Mask the column key, value or headers; `check` as in FieldMask.applied."""
        if name == "headers":
            return self._masked_headers(column, check)
        mask = self.key if name == "key" else self.value
        return column if mask.is_empty else mask.applied(column, check)

    def _masked_headers(self, column: pa.Array, check: Callable[[], None]) -> pa.Array:
        if self._headers.is_empty:
            return column
        counts = pc.list_value_length(column)
        entries = column.flatten()
        masked = pa.StructArray.from_arrays(
            [entries.field("key"), self._headers.applied(entries.field("value"), check)],
            fields=list(HEADER_TYPE),
        )
        ends = pc.cumulative_sum(counts.fill_null(0).cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        return pa.ListArray.from_arrays(offsets, masked, type=HEADERS_TYPE, mask=column.is_null())


# --- rules -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRules:
    """What the operator has set: masks, and schemas by subject (`TOPIC-key`, `TOPIC-value`)."""

    masks: tuple[MaskRule, ...] = ()
    schemas: Mapping[str, Decoder] = field(default_factory=dict)

    def masks_of(self, topic: str) -> Masks:
        """Return the masks of a topic; fields with a schema are masked as JSON."""
        return Masks(
            self.masks, topic, {name: self.schemas[f"{topic}-{name}"] for name in self.subjects_of(topic)}
        )

    def decoders_of(self, topic: str) -> dict[str, Decoder]:
        """Return the decoders of what the masks of a topic have left: key and value."""
        masks = self.masks_of(topic)
        masked = {"key": masks.key.decodes, "value": masks.value.decodes}
        return {name: self.schemas[f"{topic}-{name}"] for name in self.subjects_of(topic) if not masked[name]}

    def subjects_of(self, topic: str) -> tuple[str, ...]:
        """Return which of key and value have a schema."""
        return tuple(name for name in ("key", "value") if f"{topic}-{name}" in self.schemas)


def load_rules(masks: Path | None = None, schemas: Path | None = None) -> MessageRules:
    """Read a file of masks, and a folder of schemas: SUBJECT.avsc (Avro), SUBJECT@MESSAGE.desc (Protobuf).

    Raises:
        InvalidRequestError: one of them is not correct. OSError: it cannot be read.
    """
    found: dict[str, Decoder] = {}
    for path in sorted(schemas.iterdir()) if schemas is not None else ():
        if path.suffix == ".avsc":
            found[path.stem] = AvroDecoder(path.read_text(encoding="utf-8"))
        elif path.suffix == ".desc":
            subject, _, message = path.stem.partition("@")
            found[subject] = ProtobufDecoder(path.read_bytes(), message)
    return MessageRules(masks=() if masks is None else parse_masks(masks.read_bytes()), schemas=found)
