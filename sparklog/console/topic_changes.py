"""Changes of topics: create, settings, a record, records that go, delete.

The plans are those of the command line (client/admin.py, client/groups.py). A preview is made by planning
against the newest image. Confirming refuses a topic that was deleted or altered since.
Invariants: internal topics get no records, and neither they nor their records are deleted here.
Not here: forms, codes and who may send them (changes.py, app.py).
"""

import base64
import binascii
import dataclasses
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa

from sparklog.client import admin, refuse_internal
from sparklog.client.admin import ConfigSource, EffectiveConfig, effective_configs
from sparklog.client.topic_plan import partitions_of_new
from sparklog.client.waiting_rows import StickyPartitioner, partition_rows
from sparklog.console.changes import (
    MAX_ROWS,
    Change,
    ChangeRow,
    Fields,
    Plan,
    Preview,
    outdated,
    wrong,
)
from sparklog.console.pages import setting_text
from sparklog.console.topics import topic_size
from sparklog.console.views import Console, Parameter, Query
from sparklog.errors import InvalidRequestError
from sparklog.format.codec import Codec
from sparklog.format.encode import EncodeOptions, encode_batches
from sparklog.format.schema import HEADERS_TYPE, RecordColumns
from sparklog.log.config import RootConfig, TopicConfig
from sparklog.log.setting import Setting, declared_settings
from sparklog.maintenance.retain import choose_expired
from sparklog.metadata import Image, Topic, is_internal, new_id
from sparklog.wording import counted, human_bytes, plain

_DECLARED: Final = declared_settings(TopicConfig)
_SHOWN: Final = 200  # characters of a key or a value
_EXPIRY: Final = {"retention.ms", "retention.bytes", "cleanup.policy"}

# --- settings ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SettingField:
    """A setting in a form.

    Fields:
        own: the topic's value; null: it has none.
        inherited: what is in force without it, and where that comes from.
        choices: the only values; empty: any that `allowed` describes.
    """

    name: str
    own: str | None
    inherited: str
    source: str
    choices: tuple[str, ...]
    allowed: str
    doc: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SettingsForm:
    """The settings of a topic, or of a new one (an empty name)."""

    topic: str
    partitions: int
    settings: tuple[SettingField, ...]


def _fields_of(configs: Mapping[str, str], root: Mapping[str, str]) -> tuple[SettingField, ...]:
    fields = []
    for name, (_, declared) in _DECLARED.items():
        is_root = name in root
        fields.append(
            SettingField(
                name=name,
                own=configs.get(name),
                inherited=root[name] if is_root else declared.format(declared.default),
                source=ConfigSource.ROOT if is_root else ConfigSource.DEFAULT,
                choices=_choices(declared),
                allowed=declared.bounds,
                doc=declared.doc,
            )
        )
    return tuple(sorted(fields, key=lambda one: one.own is None))


def _choices(declared: Setting) -> tuple[str, ...]:
    if declared.kind is bool:
        return ("true", "false")
    return declared.choices if declared.kind is str else ()


def _settings_form(console: Console, query: Query) -> SettingsForm:
    image, name = console.image, query.name("topic")
    topic = image.topic(name)
    return SettingsForm(
        topic=name, partitions=len(topic.partitions), settings=_fields_of(topic.configs, image.configs)
    )


def _plan_settings(console: Console, query: Query, fields: Fields) -> Plan:
    image, name = console.log.refresh(force=True), query.name("topic")
    topic = image.topic(name)
    given = {key: fields.raw(key) for key in _DECLARED if key in fields}
    changed = {key: text.strip() for key, text in given.items() if text is not None}
    changed = {key: text for key, text in changed.items() if text != topic.configs.get(key)}
    deleted = [key for key, text in given.items() if text is None and key in topic.configs]
    total = fields.number("partitions", least=1)
    if total == len(topic.partitions):
        total = None
    after = _after(image, topic, changed, deleted, total)  # refuses what is illegal
    rows = _setting_rows(image, after, name)
    notes = []
    if total is not None:
        rows.append(ChangeRow(what="partitions", before=str(len(topic.partitions)), after=str(total)))
        notes.append("Keys hash over the new number of partitions from now on; records already there stay.")
    if _EXPIRY & {*changed, *deleted}:
        notes.append(_what_expires(console, image, after, name))

    def apply() -> str:
        _require_same(console, topic)
        admin.alter_topic(console.log.metadata, name, changed, deleted, partitions=total)
        return f"/topics/{name}"

    preview = Preview(
        title=f"Settings of {name}",
        button=f"Change {name}",
        is_loss=any("would go" in note for note in notes),
        rows=tuple(rows),
        row_count=len(rows),
        notes=tuple(notes),
    )
    return Plan(preview=preview, apply=apply if rows else None)


def _after(
    image: Image, topic: Topic, changed: Mapping[str, str], deleted: list[str], total: int | None
) -> Image:
    """The image with the new settings of a topic; raises what altering it would raise."""
    admin.plan_topic_configs(image, topic.name, {**changed, **dict.fromkeys(deleted)})
    if total is not None:
        admin.plan_more_partitions(image, topic.name, total)
    configs = {key: value for key, value in topic.configs.items() if key not in deleted} | dict(changed)
    altered = dataclasses.replace(topic, configs=configs)
    return dataclasses.replace(image, topics={**image.topics, topic.name: altered})


def _setting_rows(before: Image, after: Image, name: str) -> list[ChangeRow]:
    pairs = zip(effective_configs(before, name), effective_configs(after, name), strict=True)
    return [
        ChangeRow(what=old.name, before=_in_force(old), after=_in_force(new))
        for old, new in pairs
        if old != new
    ]


def _in_force(one: EffectiveConfig) -> str:
    shown = setting_text(one.value, one.name)
    exact = (
        ""
        if shown == one.value or shown.replace(",", "") == one.value or not one.value
        else f"{one.value} = "
    )
    return f"{exact}{shown} ({one.source})"


def _what_expires(console: Console, before: Image, after: Image, name: str) -> str:
    """What retention would remove with the new settings that it keeps with the old ones."""

    def expired(image: Image) -> tuple[int, int]:
        found = list(choose_expired(image, console.now_ms, {name}))
        return sum(one.offsets for one in found), sum(one.size_bytes for one in found)

    old, new = expired(before), expired(after)
    if new[0] <= old[0]:
        return "No record goes because of it now."
    more = counted(new[0] - old[0], "record")
    return (
        f"The next maintenance would remove {more} ({human_bytes(new[1] - old[1])}): they would go for good."
    )


def _require_same(console: Console, topic: Topic) -> None:
    """Raise PREVIEW_OUTDATED unless a topic is still the one, with the settings and partitions shown."""
    now = console.log.refresh(force=True).topics.get(topic.name)
    if now is None or now.topic_id != topic.topic_id:
        raise outdated(f"topic {topic.name} was deleted")
    if dict(now.configs) != dict(topic.configs) or len(now.partitions) != len(topic.partitions):
        raise outdated(f"topic {topic.name} was altered")


# --- create and delete -------------------------------------------------------------------------------


def _create_form(console: Console, _query: Query) -> SettingsForm:
    image = console.image
    count = partitions_of_new("", RootConfig.parse(image.configs))
    return SettingsForm(topic="", partitions=count, settings=_fields_of({}, image.configs))


def _plan_create(console: Console, _query: Query, fields: Fields) -> Plan:
    image, name = console.log.refresh(force=True), fields.text("name")
    if not name:
        raise wrong("name", "", "the name of the new topic")
    texts = {key: fields.raw(key) for key in _DECLARED}
    configs = {key: text.strip() for key, text in texts.items() if text is not None}
    planned = admin.plan_new_topic(
        image,
        name,
        topic_id=new_id(),
        root=RootConfig.parse(image.configs),
        partitions=fields.number("partitions", least=1),
        configs=configs,
    )
    count = planned.partitions
    rows = [
        ChangeRow(what="topic", before=None, after=name),
        ChangeRow(what="partitions", before=None, after=str(count)),
        *(ChangeRow(what=key, before=None, after=value) for key, value in sorted(configs.items())),
    ]

    def apply() -> str:
        console.log.create_topic(name, count, configs)
        return f"/topics/{name}"

    preview = Preview(
        title=f"Create topic {name}", button=f"Create {name}", rows=tuple(rows), row_count=len(rows)
    )
    return Plan(preview=preview, apply=apply)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicForm:
    """A topic that a form is for."""

    topic: str
    partitions: int
    records: int
    size_bytes: int


def _topic_form(console: Console, query: Query) -> TopicForm:
    name = query.name("topic")
    found = topic_size(console.image.topic(name))
    return TopicForm(topic=name, partitions=found.partitions, records=found.records, size_bytes=found.size)


def _plan_delete(console: Console, query: Query, fields: Fields) -> Plan:
    name = query.name("topic")
    topic = console.log.refresh(force=True).topic(name)
    if is_internal(name):
        raise InvalidRequestError(
            "INTERNAL_TOPIC",
            f"topic {name} is internal: groups and brokers keep their state in it",
            fix="leave it; `sparklog topics delete --internal` says what would be lost",
        )
    if fields.text("name") != name:
        raise wrong("name", fields.text("name"), f"the name of the topic, {name}")
    size = topic_size(topic)
    groups = [group for group in console.log.groups() if _reads(console, group, name)]
    rows = [
        ChangeRow(what="topic", before=name, after=None),
        ChangeRow(what="partitions", before=f"{size.partitions:,}", after=None),
        ChangeRow(what="records", before=f"{size.records:,}", after=None),
        ChangeRow(what="bytes", before=human_bytes(size.size), after=None),
        *(ChangeRow(what="position of a group", before=group, after=None) for group in groups),
    ]

    def apply() -> str:
        _require_same(console, topic)
        console.log.delete_topic(name)
        return "/topics"

    preview = Preview(
        title=f"Delete topic {name}",
        button=f"Delete {name} and all its records",
        is_loss=True,
        rows=tuple(rows[:MAX_ROWS]),
        row_count=len(rows),
    )
    return Plan(preview=preview, apply=apply)


def _reads(console: Console, group: str, topic: str) -> bool:
    return any(name == topic for name, _ in console.log.committed_offsets(group, image=console.log.image))


# --- records -----------------------------------------------------------------------------------------


def _plan_delete_records(console: Console, query: Query, fields: Fields) -> Plan:
    image, name = console.log.refresh(force=True), query.name("topic")
    topic = image.topic(name)
    partition, offset = fields.number("partition"), fields.number("offset", least=admin.LOG_END)
    if offset is None:
        raise wrong("offset", "", "the offset before which all records go, or -1 for all there are")
    if partition is None and offset != admin.LOG_END:
        raise wrong("partition", "", "its number: offsets differ by partition; without one offset must be -1")
    numbers = range(len(topic.partitions)) if partition is None else [partition]
    before = {(name, number): offset for number in numbers}
    planned = admin.delete_records(console.log.metadata, before, dry_run=True)
    moved = {at: one for at, one in planned.items() if one.new_log_start_offset > one.log_start_offset}
    count = sum(one.new_log_start_offset - one.log_start_offset for one in moved.values())
    rows = [
        ChangeRow(
            what=f"{name}-{number} log start",
            before=str(one.log_start_offset),
            after=str(one.new_log_start_offset),
            note=counted(one.new_log_start_offset - one.log_start_offset, "record"),
        )
        for (_, number), one in sorted(moved.items())
    ]

    def apply() -> str:
        now = console.log.refresh(force=True).topics.get(name)
        if now is None or now.topic_id != topic.topic_id:
            raise outdated(f"topic {name} was deleted")
        # What was shown, and nothing that was written since.
        admin.delete_records(
            console.log.metadata, {at: one.new_log_start_offset for at, one in moved.items()}
        )
        return f"/topics/{name}"

    preview = Preview(
        title=f"Delete records of {name}",
        button=f"Delete {counted(count, 'record')}",
        is_loss=True,
        rows=tuple(rows[:MAX_ROWS]),
        row_count=len(rows),
        notes=("The next vacuum frees the space.",),
    )
    return Plan(preview=preview, apply=apply if rows else None)


_ENCODINGS: Final = ("text", "hex", "base64", "null")


def _bytes(fields: Fields, name: str) -> bytes | None:
    """A key or a value, by the field that says how it is written."""
    encoding = fields.choice(f"{name}_is", _ENCODINGS)
    text = fields.raw(name) or ""
    try:
        match encoding:
            case "text":
                return None if name == "key" and not text else text.encode()
            case "hex":
                return bytes.fromhex(text)
            case "base64":
                return base64.b64decode("".join(text.split()), validate=True)
    except (ValueError, binascii.Error) as error:  # also half of a surrogate pair, in JSON
        raise wrong(name, text, f"{encoding}: {error}") from None
    if text:
        raise wrong(name, text, "nothing, since it is to be null")
    return None


def _headers(text: str) -> list[dict[str, object]]:
    """One a line: `name: value`."""
    found: list[dict[str, object]] = []
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        if line.strip():
            if not colon or not name.strip():
                raise wrong("headers", line, "name: value, one a line")
            found.append({"key": name.strip(), "value": value.strip().encode()})
    return found


def _refuse_closed(console: Console, name: str) -> None:
    refuse_internal(name)
    if name in console.closed_topics:
        raise InvalidRequestError(
            "INTERNAL_TOPIC", f"topic {name}: only brokers append to it", fix="name another topic"
        )


def _plan_produce(console: Console, query: Query, fields: Fields) -> Plan:
    image, name = console.log.refresh(force=True), query.name("topic")
    topic = image.topic(name)
    _refuse_closed(console, name)
    key, value, headers = (
        _bytes(fields, "key"),
        _bytes(fields, "value"),
        _headers(fields.raw("headers") or ""),
    )
    rows = pa.table(
        {
            "key": pa.array([key], pa.binary()),
            "value": pa.array([value], pa.binary()),
            "headers": pa.array([headers], HEADERS_TYPE),
        }
    )
    wanted = fields.number("partition")
    if wanted is not None and wanted >= len(topic.partitions):
        raise wrong("partition", str(wanted), f"0 to {len(topic.partitions) - 1}")
    partition = int(
        partition_rows(
            rows.column("key").combine_chunks(),
            None if wanted is None else pa.array([wanted], pa.int32()),
            len(topic.partitions),
            StickyPartitioner(turn=console.now_ms),
            rows=1,
            topic=name,
        )[0]
    )
    _refuse_large(key, value, headers, TopicConfig.parse(topic.configs, image.configs))
    why = "as given" if wanted is not None else "by the key" if key is not None else "any: there is no key"

    def apply() -> str:
        now = console.log.refresh(force=True).topics.get(name)
        if now is None or now.topic_id != topic.topic_id or len(now.partitions) != len(topic.partitions):
            raise outdated(f"topic {name} was deleted or altered")
        appended = console.log.append(name, rows, partition=partition).partitions[partition]
        page = f"/messages/{partition}/{appended.base_offset}" if console.has_messages else ""
        return f"/topics/{name}{page}"

    shown = (
        ChangeRow(what="partition", before=None, after=str(partition), note=why),
        ChangeRow(what="key", before=None, after=_shown(key), note=_size(key)),
        ChangeRow(what="value", before=None, after=_shown(value), note=_size(value)),
        *(
            ChangeRow(what="header", before=None, after=f"{one['key']}: {_shown(bytes(one['value']))}")  # type: ignore[call-overload]
            for one in headers
        ),
    )
    preview = Preview(
        title=f"Write a record to {name}",
        button=f"Write it to {name}-{partition}",
        rows=shown[:MAX_ROWS],
        row_count=len(shown),
        notes=() if value is not None else ("A null value deletes the key in a compacted topic.",),
    )
    return Plan(preview=preview, apply=apply)


def _refuse_large(
    key: bytes | None, value: bytes | None, headers: list[dict[str, object]], config: TopicConfig
) -> None:
    """Raise RECORD_TOO_LARGE as writing the record would."""
    codec = Codec.NONE if config.compression_type == "producer" else Codec.from_name(config.compression_type)
    size = config.max_message_bytes
    columns = RecordColumns(
        key=pa.array([key], pa.binary()),
        value=pa.array([value], pa.binary()),
        headers=pa.array([headers], HEADERS_TYPE),
        timestamp_ms=np.zeros(1, np.int64),
    )
    encode_batches(columns, EncodeOptions(codec=codec, max_batch_bytes=size, max_message_bytes=size))


def _shown(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        text = plain(data[: 4 * _SHOWN].decode(), keep="\n")
    except UnicodeDecodeError:
        text = data[:_SHOWN].hex(" ")
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _size(data: bytes | None) -> str:
    return "null" if data is None else human_bytes(len(data))


# --- changes -----------------------------------------------------------------------------------------

_PARTITIONS = Parameter("partitions", "Its number of partitions; it can only grow.")
_SETTINGS = tuple(
    Parameter(name, f"{declared.doc} {declared.bounds}. null: the root's or the default.")
    for name, (_, declared) in _DECLARED.items()
)
_IS = f"How it is written: {', '.join(_ENCODINGS)}."

DELETE: Final = Change(
    path="/topics/{topic}/delete",
    subject="Topics",
    template="delete_topic.html",
    form=_topic_form,
    plan=_plan_delete,
    doc="Delete a topic, its records, and what groups have committed for it.",
    fields=(Parameter("name", "Its name again."),),
)
CHANGES: Final = (
    Change(
        path="/create-topic",
        subject="Topics",
        template="create_topic.html",
        form=_create_form,
        plan=_plan_create,
        doc="Create a topic.",
        fields=(Parameter("name", "Its name."), _PARTITIONS, *_SETTINGS),
    ),
    Change(
        path="/topics/{topic}/settings",
        subject="Topics",
        template="settings.html",
        form=_settings_form,
        plan=_plan_settings,
        doc="Change settings of a topic: those that are given.",
        fields=(_PARTITIONS, *_SETTINGS),
    ),
    Change(
        path="/topics/{topic}/produce",
        subject="Topics",
        template="produce.html",
        form=_topic_form,
        plan=_plan_produce,
        doc="Write a record.",
        fields=(
            Parameter("partition", "Its partition; without it, by the key."),
            Parameter("key", "Its key; without a text, null."),
            Parameter("key_is", _IS),
            Parameter("value", "Its value."),
            Parameter("value_is", _IS),
            Parameter("headers", "Headers, one a line: name: value."),
        ),
    ),
    Change(
        path="/topics/{topic}/delete-records",
        subject="Topics",
        template="delete_records.html",
        form=_topic_form,
        plan=_plan_delete_records,
        doc="Delete all records before an offset.",
        fields=(
            Parameter("partition", "The partition; all without, if offset is -1."),
            Parameter("offset", "The new start of its log; -1: all records that there are now go."),
        ),
    ),
    DELETE,
)
