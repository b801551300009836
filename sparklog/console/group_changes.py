"""Changes of groups: where a group goes on, and deleting it.

The rules are those of `sparklog groups`: a group with members is changed by nobody. In a root that brokers
serve the group's coordinator makes the change, and refuses it if there are members; in any other root it is
written to the root, and refused if the group has committed since it was shown.
Not here: the plan (client/offset_reset.py), forms and codes (changes.py).
"""

import dataclasses
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from sparklog.client.group_coordinators import GroupCoordinators
from sparklog.client.group_expiry import delete_groups
from sparklog.client.groups import TopicPartition
from sparklog.client.offset_reset import Mode, Reset, ResetPlan, parse_plan_csv, plan_csv, propose_reset
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
from sparklog.console.group_members import CHANGE_TIMEOUT_MS, coordinators_of
from sparklog.console.message_pages import time_ms
from sparklog.console.views import Console, MissingError, Parameter, Query
from sparklog.errors import InvalidRequestError
from sparklog.metadata import Image
from sparklog.wording import counted, plain

MODES: Final = ("earliest", "latest", "current", "offset", "shift-by", "datetime", "by-duration", "file")
UNITS_MS: Final = {"minutes": 60_000, "hours": 3_600_000, "days": 86_400_000}
_MAX_DAYS: Final = 36_500
_MAX_ERRORS: Final = 5
Offsets = Mapping[TopicPartition, int]

# --- reset -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GroupForm:
    """A group that a form is for.

    Fields:
        csv: its committed offsets, in Kafka's file format.
    """

    group: str
    topics: tuple[str, ...]
    partitions: int
    csv: str


def _group_form(console: Console, query: Query) -> GroupForm:
    name, image = query.text("group"), console.image
    committed = _committed(console, image, name)
    rows = dict(sorted(committed.items())[:MAX_ROWS])
    return GroupForm(
        group=name,
        topics=tuple(sorted({topic for topic, _ in committed})),
        partitions=len(committed),
        csv=plan_csv([ResetPlan(group=name, offsets=rows)], with_group=False),
    )


def _committed(console: Console, image: Image, name: str) -> dict[TopicPartition, int]:
    found = console.log.committed_offsets(name, image=image) if name else {}
    if not found:
        raise MissingError(f"group {name!r}: it has committed no offsets")
    return found


def _plan_reset(console: Console, query: Query, fields: Fields) -> Plan:
    name, image = query.text("group"), console.log.refresh(force=True)
    if not name:
        raise wrong("group", "", "the name of a group, after ? in the address")
    committed = console.log.committed_offsets(name, image=image)
    coordinators = _coordinators_of_empty(console, image, name)
    reset = _reset_of(console, fields, name)
    plan = propose_reset(console.log, name, reset, _partitions(image, fields, reset), image=image)
    moved = {at: offset for at, offset in plan.offsets.items() if committed.get(at) != offset}
    rows = [_row(at, committed.get(at), offset) for at, offset in list(moved.items())[:MAX_ROWS]]

    def apply() -> str:
        _require_same(console, name, committed, coordinators)
        if coordinators is None:
            console.log.commit_offsets(name, moved)
        else:
            errors = coordinators.commit_offsets(name, moved)
            _refuse(name, {f"{topic}-{number}": why for (topic, number), why in errors.items()})
        return f"/group?group={quote(name, safe='')}"

    same = len(plan.offsets) - len(moved)
    stay = [f"{counted(same, 'partition')} {'stays' if same == 1 else 'stay'} as they are."] if same else []
    preview = Preview(
        title=f"Move group {name}",
        button=f"Move {counted(len(moved), 'partition')}",
        rows=tuple(rows),
        row_count=len(moved),
        notes=(*(f"{note}." for note in plan.notes[:MAX_ROWS]), *stay),
    )
    return Plan(preview=preview, apply=apply if moved else None)


def _row(at: TopicPartition, before: int | None, after: int) -> ChangeRow:
    note = ""
    if before is not None:
        count = counted(abs(after - before), "offset")
        note = f"reads {count} again" if after < before else f"skips {count}"
    return ChangeRow(
        what=f"{at[0]}-{at[1]}", before=None if before is None else str(before), after=str(after), note=note
    )


def _reset_of(console: Console, fields: Fields, group: str) -> Reset:
    """Read where to."""
    mode = fields.choice("to", MODES)
    value = fields.text("value")
    if mode in {"earliest", "latest", "current", "file"} and value:
        raise wrong("value", value, f"nothing for {mode}")
    match mode:
        case "offset" | "shift-by":
            number = fields.number("value", least=0 if mode == "offset" else -(1 << 62))
            if number is None:
                raise wrong("value", "", "the offset" if mode == "offset" else "a number, negative for back")
            return Reset(mode=Mode.OFFSET if mode == "offset" else Mode.SHIFT, value=number)
        case "datetime":
            return Reset(mode=Mode.TIME, value=time_ms("value", value))
        case "by-duration":
            count = fields.number("value")
            unit_ms = UNITS_MS[fields.choice("unit", UNITS_MS)]
            if count is None or count * unit_ms > _MAX_DAYS * UNITS_MS["days"]:
                raise wrong("value", value, f"how long ago, at most {_MAX_DAYS:,} days")
            return Reset(mode=Mode.TIME, value=console.now_ms - count * unit_ms)
        case "file":
            offsets = parse_plan_csv(fields.raw("csv") or "", [group])[group]
            return Reset(mode=Mode.FILE, offsets=offsets)
    return Reset(mode=Mode(f"--to-{mode}"))


def _partitions(image: Image, fields: Fields, reset: Reset) -> list[TopicPartition] | None:
    topic, text = fields.text("topic"), fields.text("partition")
    if reset.mode is Mode.FILE and (topic or text):
        raise wrong("topic", topic or text, "nothing: the file names the partitions")
    if not topic:
        if text:
            raise wrong("partition", text, "nothing without a topic")
        return None
    count = len(image.topic(topic).partitions)
    if not text:
        return [(topic, number) for number in range(count)]
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() and len(word) < 10 for word in words):
        raise wrong("partition", text, "numbers with commas, as in 0,2")
    return list(dict.fromkeys((topic, int(word)) for word in words))


def _coordinators_of_empty(console: Console, image: Image, name: str) -> GroupCoordinators | None:
    """Return whom to ask for a change; None: the root is written to.

    Raises:
        InvalidRequestError: GROUP_UNCHANGED: it has members. RetriableError: its coordinator is silent.
    """
    found = coordinators_of(console, image, timeout_ms=CHANGE_TIMEOUT_MS)
    if found is not None:
        described = found.describe([name])[name]
        if described.has_members:
            raise _unchanged(
                name,
                f"it has {counted(len(described.members), 'member')}, and its state is {described.state}",
            )
    return found


def _require_same(
    console: Console, name: str, committed: Offsets, coordinators: GroupCoordinators | None
) -> None:
    """Raise PREVIEW_OUTDATED if the group has committed since, or a broker serves the root by now."""
    now = console.log.refresh(force=True)
    if coordinators is None and now.brokers:
        raise outdated("a broker serves this root by now")
    if console.log.committed_offsets(name, image=now) != committed:
        raise outdated(f"group {name} has committed since; stop its consumers first")


def _refuse(name: str, errors: Mapping[str, str | None]) -> None:
    wrong_ones = [f"{at}: {why}" for at, why in errors.items() if why is not None]
    if wrong_ones:
        more = f" and {len(wrong_ones) - _MAX_ERRORS} more" if len(wrong_ones) > _MAX_ERRORS else ""
        raise _unchanged(name, "; ".join(wrong_ones[:_MAX_ERRORS]) + more)


def _unchanged(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        "GROUP_UNCHANGED",
        f"group {name!r} is not changed: {why}",
        fix="stop its consumers, and wait until their session timeout is over",
    )


# --- delete ------------------------------------------------------------------------------------------


def _plan_delete(console: Console, query: Query, fields: Fields) -> Plan:
    name, image = query.text("group"), console.log.refresh(force=True)
    committed = _committed(console, image, name)
    coordinators = _coordinators_of_empty(console, image, name)
    if fields.text("name") not in {name.strip(), plain(name.strip())}:  # as the form shows it
        raise wrong("name", fields.text("name"), f"the name of the group, {name}")
    rows = [
        ChangeRow(what=f"{topic}-{partition}", before=str(offset), after=None)
        for (topic, partition), offset in sorted(committed.items())[:MAX_ROWS]
    ]

    def apply() -> str:
        _require_same(console, name, committed, coordinators)
        changed = delete_groups(console.log, [name]) if coordinators is None else None
        _refuse(name, coordinators.delete_groups([name]) if coordinators is not None else changed or {})
        return "/groups"

    preview = Preview(
        title=f"Delete group {name}",
        button=f"Delete {name} and its {counted(len(committed), 'position')}",
        is_loss=True,
        rows=tuple(rows),
        row_count=len(committed),
        notes=("A consumer of this group begins again where its auto.offset.reset says.",),
    )
    return Plan(preview=preview, apply=apply)


CHANGES: Final = (
    Change(
        path="/group/reset",
        subject="Groups",
        template="reset.html",
        form=_group_form,
        plan=_plan_reset,
        doc="Move the committed offsets of the group that ?group= names.",
        fields=(
            Parameter("to", f"Where to: {', '.join(MODES)}."),
            Parameter(
                "value", "offset: the offset. shift-by: how far. datetime: a time. by-duration: how much."
            ),
            Parameter("unit", f"Of a duration: {', '.join(UNITS_MS)}."),
            Parameter("topic", "Only this topic; all that the group has committed for without it."),
            Parameter("partition", "Only these partitions of the topic: numbers with commas."),
            Parameter("csv", "file: lines topic,partition,offset."),
        ),
    ),
    Change(
        path="/group/delete",
        subject="Groups",
        template="delete_group.html",
        form=_group_form,
        plan=_plan_delete,
        doc="Delete the group that ?group= names, and what it has committed.",
        fields=(Parameter("name", "Its name again."),),
    ),
)
