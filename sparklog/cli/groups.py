"""`sparklog groups`: committed offsets, lag and members, and changes of them.

Headings are those of kafka-consumer-groups. With --bootstrap-server the groups' coordinators say who is a
member, and make the changes. Without it groups have no members, and changes are written to the root; a root
that a broker has served is refused then (group_expiry.refuse_served_root).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO

import click

from sparklog.cli.framework import (
    Group,
    confirm,
    current,
    did_you_mean,
    dry_run_option,
    force_option,
    note,
    require_topics,
    yes_option,
)
from sparklog.cli.inputs import (
    DURATION,
    parse_datetime,
    parse_duration,
    parse_java_duration,
    parse_numbers,
)
from sparklog.cli.output import (
    SETTING_COLUMNS,
    Document,
    Row,
    setting_row,
    show,
    show_json,
    show_rows,
    tell,
)
from sparklog.cli.topics import config_option, delete_config_option, tell_settings
from sparklog.errors import InvalidRequestError, UnknownTopicError
from sparklog.wording import counted

if TYPE_CHECKING:
    from sparklog.client import CommittedOffset, SparkLog
    from sparklog.client.group_coordinators import GroupCoordinators, GroupDescription, Member
    from sparklog.client.offset_reset import Reset, ResetPlan
    from sparklog.metadata import Image, PartitionState

TopicPartition = tuple[str, int]

COLUMNS = "group topic partition current_offset log_end_offset lag consumer_id host client_id lag_seconds"
VERBOSE_COLUMNS = f"{COLUMNS} committed_ms:LAST-COMMIT:time metadata"
MEMBER_COLUMNS = "group consumer_id group_instance_id host client_id partitions:#PARTITIONS"
EPOCH_COLUMNS = " group_epoch target_assignment_epoch"
STATE_COLUMNS = (
    "group coordinator:COORDINATOR_(ID) assignment_strategy state members:#MEMBERS type" + EPOCH_COLUMNS
)
MEMBER_EPOCH_COLUMNS = " current_epoch target_assignment"
SILENT_COLUMNS = "group offsets committed_ms:LAST-COMMIT:time"
RESET_COLUMNS = "group topic partition new_offset"
MOST_NAMED = 20

all_groups_option = click.option("--all-groups", is_flag=True, help="Every group.")
groups_option = click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="A group.")
timeout_option = click.option(
    "--timeout",
    "timeout_ms",
    type=click.IntRange(min=1),
    default=30_000,
    metavar="MS",
    help="How long coordinators are waited for (30000).",
)
SHARE_TOOL, CONSUMER_TOOL = "kafka-share-groups", "kafka-consumer-groups"
_TOOL = "sparklog.groups.tool"  # in a context's `meta`


def _note_tool(context: click.Context, _parameter: click.Parameter, tool: str | None) -> str | None:
    """Callback of --as: remember the name under which a command runs; see `_wanted`."""
    context.meta[_TOOL] = tool
    return tool


tool_option = click.option(
    "--as",
    "tool",
    type=click.Choice([CONSUMER_TOOL, SHARE_TOOL]),
    hidden=True,
    expose_value=False,
    callback=_note_tool,
)


@click.group("groups", cls=Group)
def groups() -> None:
    """Consumer groups: offsets, lag and members; reset and delete."""


@groups.command("list")
@click.option("--type", "with_types", is_flag=True, help="Also the type of each: classic, consumer, share.")
@click.option("--state", is_flag=True, help="Also the state of each; without a broker it is Empty.")
@tool_option
@timeout_option
def list_groups(with_types: bool, state: bool, timeout_ms: int) -> None:
    """List the groups that have committed offsets; with --bootstrap-server, also those with members only."""
    log = current().open_log()
    coordinators = current().coordinators(log, timeout_ms=timeout_ms)
    if state:
        _refuse_unknown_members(log, coordinators)
    found = _wanted(log, coordinators, (), all_groups=True)
    if not found:
        note("No group has committed offsets.")
    of_consumers = log.consumer_groups()
    rows: list[Document] = [{"group": name, "type": _type_of(log, name, of_consumers)} for name in found]
    if state:
        described = _described(log, coordinators, found)
        for row in rows:
            one = described.get(str(row["group"]))
            row["state"] = "Empty" if one is None else one.state
    if with_types or state:
        show_rows("group" + (" type" if with_types else "") + (" state" if state else ""), rows)
    else:
        show(rows, *found)


def _type_of(log: SparkLog, name: str, of_consumers: Collection[str]) -> str:
    if name in log.image.shares:
        return "share"
    return "consumer" if name in of_consumers else "classic"


def _wanted(
    log: SparkLog, coordinators: GroupCoordinators | None, names: Sequence[str], all_groups: bool
) -> list[str]:
    """The groups that a command is for.

    Under the name of a tool of Kafka they are of its kind alone: `kafka-share-groups --delete --all-groups`
    deletes no consumer group.
    """
    if bool(names) == all_groups:
        raise click.UsageError("give --group NAME (as often as needed) or --all-groups.")
    tool = click.get_current_context().meta.get(_TOOL)
    listed = coordinators.list_groups() if coordinators and (all_groups or tool is not None) else {}
    shares = {*log.image.shares, *(name for name, kind in listed.items() if kind == "share")}
    others = {*log.groups(), *listed} - shares
    kinds = {SHARE_TOOL: (shares, others), CONSUMER_TOOL: (others, shares)}
    of_tool, foreign = kinds.get(str(tool), ({*shares, *others}, set()))
    if all_groups:
        return sorted(of_tool)
    for name in names:
        if name in foreign:
            is_share, right = (False, CONSUMER_TOOL) if tool == SHARE_TOOL else (True, SHARE_TOOL)
            raise click.ClickException(
                f"group {name!r} is a {'share' if is_share else 'consumer'} group: use {right}, "
                "or `sparklog groups`, which is for both."
            )
    return list(dict.fromkeys(names))


def _refuse_unknown_members(log: SparkLog, coordinators: GroupCoordinators | None) -> None:
    if coordinators is None and log.image.brokers:
        raise click.UsageError(
            "only a broker knows which members a group has: ask one with --bootstrap-server HOST:PORT."
        )


def _no_such_group(log: SparkLog, name: str) -> InvalidRequestError:
    return InvalidRequestError(
        "GROUP_MISSING",
        f"Consumer group '{name}' does not exist: it has committed no offsets"
        + did_you_mean(name, sorted({*log.groups(), *log.image.shares})),
        fix="`sparklog groups list` shows the groups; with --bootstrap-server also those with members only",
    )


def _raise_failures(failures: Mapping[str, str], whole: int, noun: str) -> None:
    """Fail with what could not be done, if anything."""
    if failures:
        shown = [f"{name}: {why}" for name, why in list(failures.items())[:MOST_NAMED]]
        more = [f"and {len(failures) - MOST_NAMED:,} more"] if len(failures) > MOST_NAMED else []
        raise click.ClickException(f"{len(failures):,} of {whole:,} {noun}: {'; '.join([*shown, *more])}")


# --- groups describe ---------------------------------------------------------------------------------


@groups.command("describe")
@groups_option
@all_groups_option
@click.option("--offsets", is_flag=True, help="Offsets and lag, the default.")
@click.option("--members", is_flag=True, help="The members instead, as a broker knows them.")
@click.option("--state", is_flag=True, help="State and coordinator instead.")
@click.option("--settings", is_flag=True, help="Settings in force instead, as a broker knows them.")
@click.option("--verbose", is_flag=True, help="Also when each offset was committed, or what members have.")
@click.option(
    "--as",
    "tool",
    type=click.Choice(["kafka-configs", CONSUMER_TOOL, SHARE_TOOL]),
    hidden=True,
    callback=_note_tool,
)
@click.option("--all", "with_defaults", is_flag=True, hidden=True)
@timeout_option
def describe(
    names: tuple[str, ...],
    all_groups: bool,
    offsets: bool,
    members: bool,
    state: bool,
    settings: bool,
    verbose: bool,
    tool: str | None,
    with_defaults: bool,
    timeout_ms: int,
) -> None:
    """Show committed offsets, log end offsets and lag; or members; or state; or settings."""
    if bool(names) == all_groups:
        raise click.UsageError("give --group NAME (as often as needed) or --all-groups.")
    if offsets + members + state + settings > 1 or (verbose and (state or settings)):
        raise click.UsageError(
            "give one of --offsets, --members, --state and --settings; --verbose with the first two."
        )
    if settings:
        _show_settings(*_with_broker(timeout_ms), names, tool=tool, with_defaults=with_defaults)
        return
    log = current().open_log()
    coordinators = current().coordinators(log, timeout_ms=timeout_ms)
    if members or state:
        _refuse_unknown_members(log, coordinators)
    wanted = _wanted(log, coordinators, names, all_groups)
    described = _described(log, coordinators, wanted)
    known = {
        *log.groups(),
        *log.image.shares,
        *(name for name, one in described.items() if one.state != "Dead"),
    }
    found = [name for name in wanted if name in known]
    if found or all_groups:
        if members:
            _show_members(found, described, verbose=verbose)
        elif state:
            has_epochs = any(one.epoch is not None for one in described.values())
            columns = STATE_COLUMNS if has_epochs else STATE_COLUMNS.removesuffix(EPOCH_COLUMNS)
            of_consumers = log.consumer_groups()
            show_rows(columns, [_state_row(name, described.get(name), of_consumers) for name in found])
        else:
            rows = offset_rows(log, found, described)
            show_rows(VERBOSE_COLUMNS if verbose else COLUMNS, rows)
    missing = [name for name in wanted if name not in known]
    if missing and names:
        raise _no_such_group(log, missing[0])


def _show_settings(
    log: SparkLog,
    coordinators: GroupCoordinators,
    names: Sequence[str],
    *,
    tool: str | None,
    with_defaults: bool,
) -> None:
    """Of all that are named, for a group may have settings before it has members; else of those there are."""
    wanted = names or _wanted(log, coordinators, (), all_groups=True)
    found = coordinators.settings(wanted)
    _raise_failures(
        {f"group {name!r}": why for name, (why, _) in found.items() if why}, len(wanted), "groups"
    )
    if current().json:
        entries = {name: [dataclasses.asdict(entry) for entry in found[name][1]] for name in wanted}
        show_json([{"group": name, "settings": entries[name]} for name in wanted])
        return
    for name in wanted:
        if tool is not None:
            own = [one for one in found[name][1] if with_defaults or one.source == "group"]
            tell_settings(f"group {name}", own, with_defaults=with_defaults)
            continue
        tell(f"Group: {name}")
        show_rows(SETTING_COLUMNS, list(map(setting_row, found[name][1])))


def _with_broker(timeout_ms: int) -> tuple[SparkLog, GroupCoordinators]:
    if current().bootstrap_server is None:
        raise click.UsageError(
            "a running broker checks the settings of groups: give --bootstrap-server HOST:PORT."
        )
    log = current().open_log()
    coordinators = current().coordinators(log, timeout_ms=timeout_ms)
    assert coordinators is not None
    return log, coordinators


def _described(
    log: SparkLog, coordinators: GroupCoordinators | None, names: Sequence[str]
) -> dict[str, GroupDescription]:
    """What coordinators know of groups, of whatever kind."""
    if coordinators is None:
        return {}
    found = coordinators.describe([name for name in names if name not in log.image.shares])
    shares = [name for name in names if name not in found or found[name].state == "Dead"]
    return found | (coordinators.describe_shares(shares) if shares else {})


def _share_rows(image: Image, group: str) -> list[Row]:
    """One row for each partition in which a share group has begun: its start offset is its position."""
    from sparklog.client.share_groups import share_offsets

    return [
        {
            **_offset_row(group, at, None, one.log_end_offset, one.lag, None, None),
            "current_offset": one.start_offset,
        }
        for at, one in share_offsets(image, group).items()
    ]


def offset_rows(
    log: SparkLog, names: Collection[str], described: Mapping[str, GroupDescription]
) -> list[Row]:
    """One row for each partition that a group has committed an offset of, or that a member has; and one for
    each member without any.
    """
    from sparklog.client.lag import lag_seconds

    image = log.refresh()
    committed = {name: log.describe_offsets(name, image=image) for name in names}
    offsets = [(*at, one.offset) for of_group in committed.values() for at, one in of_group.items()]
    ages = lag_seconds(log, offsets, image=image)
    rows: list[Row] = []
    for group, of_group in committed.items():
        if group in image.shares:
            rows += _share_rows(image, group)
            continue
        members = described[group].members if group in described else ()
        owners = {at: member for member in members for at in member.partitions}
        for topic, partition in sorted({*of_group, *owners}):
            one = of_group.get((topic, partition))
            state = _state(image, topic, partition)
            lag = None if one is None or state is None else state.lag(one.offset)
            rows.append(
                _offset_row(
                    group,
                    (topic, partition),
                    one,
                    None if state is None else state.log_end_offset,
                    lag,
                    None if one is None or lag is None else ages[topic, partition, one.offset],
                    owners.get((topic, partition)),
                )
            )
        rows += [
            _offset_row(group, (None, None), None, None, None, None, member)
            for member in members
            if not member.partitions
        ]
        if group in described and not members:
            note(f"Consumer group '{group}' has no active members.")
    return rows


def _offset_row(
    group: str,
    at: tuple[str | None, int | None],
    committed: CommittedOffset | None,
    end: int | None,
    lag: int | None,
    lag_seconds: float | None,
    member: Member | None,
) -> Row:
    return {
        "group": group,
        "topic": at[0],
        "partition": at[1],
        "current_offset": None if committed is None else committed.offset,
        "log_end_offset": end,
        "lag": lag,
        "lag_seconds": lag_seconds,
        "consumer_id": member and member.consumer_id,
        "host": member and member.host,
        "client_id": member and member.client_id,
        "committed_ms": None if committed is None else committed.commit_timestamp_ms,
        "metadata": (committed and committed.metadata) or None,
    }


def _state(image: Image, topic: str, partition: int) -> PartitionState | None:
    """None: the topic was deleted since; the group's offset stays."""
    try:
        return image.partition(topic, partition)
    except UnknownTopicError:
        return None


def _show_members(names: Sequence[str], described: Mapping[str, GroupDescription], *, verbose: bool) -> None:
    from sparklog.client.group_coordinators import assignment_text

    members = [(name, one) for name in names if name in described for one in described[name].members]
    for name in names:
        if name not in {name for name, _ in members}:
            note(f"Consumer group '{name}' has no active members.")
    rows: list[Document] = [
        {
            "group": name,
            "consumer_id": one.consumer_id,
            "group_instance_id": one.instance_id,
            "host": one.host,
            "client_id": one.client_id,
            "partitions": len(one.partitions),
            "assignment": assignment_text(one.partitions),
            "current_epoch": one.epoch,
            "target_assignment": None if one.target is None else assignment_text(one.target),
        }
        for name, one in members
    ]
    columns = MEMBER_COLUMNS + (" assignment" if verbose else "")
    if verbose and any(one.epoch is not None for _, one in members):
        columns += MEMBER_EPOCH_COLUMNS
    if not any(row["group_instance_id"] for row in rows):
        columns = columns.replace("group_instance_id ", "")
    show_rows(columns, rows)


def _state_row(name: str, described: GroupDescription | None, of_consumers: Collection[str]) -> Row:
    """Without a broker a group has no members: Kafka calls that Empty."""
    kind = "consumer" if name in of_consumers else "classic"
    return {
        "group": name,
        "coordinator": None if described is None else described.coordinator,
        "assignment_strategy": None if described is None else described.assignment_strategy or None,
        "state": "Empty" if described is None else described.state,
        "members": 0 if described is None else len(described.members),
        "type": kind if described is None else described.type,
        "group_epoch": None if described is None else described.epoch,
        "target_assignment_epoch": None if described is None else described.target_epoch,
    }


# --- groups reset-offsets ----------------------------------------------------------------------------


@groups.command("reset-offsets")
@groups_option
@all_groups_option
@click.option("--topic", "topics", multiple=True, metavar="T[:P,...]", help="A topic, or some partitions.")
@click.option("--all-topics", is_flag=True, help="All partitions that the group has committed for.")
@click.option("--to-earliest", is_flag=True, help="To the start of the log.")
@click.option("--to-latest", is_flag=True, help="To the end of the log.")
@click.option("--to-current", is_flag=True, help="To what is committed: plans and exports it as it is.")
@click.option("--to-offset", type=click.IntRange(min=0), metavar="N", help="To an offset.")
@click.option("--shift-by", type=int, metavar="N", help="By so many offsets, forward or (negative) back.")
@click.option(
    "--to-datetime", callback=parse_datetime, metavar="TIME", help="To 2026-11-22T18:00:00.000 (UTC)."
)
@click.option(
    "--by-duration", callback=parse_java_duration, metavar="PnDTnHnMnS", help="To so long ago; or 7d, 30m."
)
@click.option("--from-file", type=click.File("r", encoding="utf-8"), metavar="CSV", help="To a plan.")
@dry_run_option
@click.option("--execute", is_flag=True, help="Commit the offsets; without it they are only shown.")
@click.option("--export", is_flag=True, help="Print the plan as CSV, for --from-file.")
@tool_option
@force_option
@timeout_option
def reset_offsets(
    names: tuple[str, ...],
    all_groups: bool,
    topics: tuple[str, ...],
    all_topics: bool,
    dry_run: bool,
    execute: bool,
    export: bool,
    force: bool,
    timeout_ms: int,
    **options: Any,
) -> None:
    """Plan where groups without members go on, and with --execute commit it."""
    from sparklog.client.group_expiry import refuse_served_root
    from sparklog.client.offset_reset import propose_reset

    if dry_run and execute:
        raise click.UsageError("--dry-run excludes --execute.")
    if export and current().json:
        raise click.UsageError("--export prints CSV: leave out --output json.")
    if bool(topics) + all_topics != (0 if options["from_file"] else 1):
        raise click.UsageError(
            "give --topic NAME (as often as needed) or --all-topics; with --from-file neither."
        )
    mode_of = _mode_of(options)
    log = current().open_log()
    coordinators = current().coordinators(log, timeout_ms=timeout_ms)
    if coordinators is None:
        refuse_served_root(log, force=force or not execute)
    wanted = _wanted(log, coordinators, names, all_groups)
    partitions = _partitions_of(log, topics) if topics else None
    described = _described(log, coordinators, wanted)
    failures = {
        f"group {name!r}": f"only a group without members can be changed, and its state is {one.state}"
        for name, one in described.items()
        if one.has_members
    }
    resets = mode_of(log, wanted)
    image = log.refresh(force=True)
    plans = [
        propose_reset(log, name, resets[name], partitions, image=image)
        for name in wanted
        if f"group {name!r}" not in failures
    ]
    for plan in plans:
        for text in plan.notes:
            note(f"Warning: {text}.")
    rows = _reset_rows(log, plans, image)
    if execute:
        done = [plan for plan in plans if not _commit(log, coordinators, plan, failures)]
        rows = [row for row in rows if row["group"] in {plan.group for plan in done}]
        plans = done
    _show_reset(plans, rows, export=export, with_group=len(wanted) != 1, executed=execute)
    if not (execute or dry_run or export):
        note("Nothing was changed: give --execute to commit these offsets.")
    _raise_failures(failures, len(wanted), "groups")


def _mode_of(options: Mapping[str, Any]) -> Callable[[SparkLog, Sequence[str]], Mapping[str, Reset]]:
    """What is asked of each group, by the one option that is given of those that say where to."""
    from sparklog.client.offset_reset import Mode, Reset, parse_plan_csv

    given = [name for name, value in options.items() if value is not None and value is not False]
    if len(given) != 1:
        shown = ", ".join(f"--{name.replace('_', '-')}" for name in options)
        raise click.UsageError(f"give exactly one of {shown}.")
    (name,) = given
    value = options[name]

    def find(log: SparkLog, wanted: Sequence[str]) -> Mapping[str, Reset]:
        if name == "from_file":
            offsets = parse_plan_csv(_read_text(value), wanted)
            return {group: Reset(mode=Mode.FILE, offsets=found) for group, found in offsets.items()}
        if name == "by_duration":
            reset = Reset(mode=Mode.TIME, value=log.clock.now_ms() - value)
        else:
            reset = Reset(mode=Mode(f"--{name.replace('_', '-')}"), value=int(value))
        return dict.fromkeys(wanted, reset)

    return find


def _read_text(file: TextIO) -> str:
    try:
        return file.read()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"{file.name}: {error}.") from None


def _reset_rows(log: SparkLog, plans: Sequence[ResetPlan], image: Image) -> list[Document]:
    from sparklog.client.offset_reset import current_offsets

    return [
        {
            "group": plan.group,
            "topic": topic,
            "partition": partition,
            "current_offset": current_offsets(log, plan.group, image).get((topic, partition)),
            "new_offset": offset,
        }
        for plan in plans
        for (topic, partition), offset in plan.offsets.items()
    ]


def _commit(
    log: SparkLog, coordinators: GroupCoordinators | None, plan: ResetPlan, failures: dict[str, str]
) -> bool:
    """True if it failed; `failures` takes why."""
    from sparklog.client.share_groups import reset_share_offsets

    is_share = plan.group in log.image.shares
    if coordinators is None:
        (reset_share_offsets if is_share else _commit_offsets)(log, plan.group, plan.offsets)
        return False
    commit = coordinators.alter_share_offsets if is_share else coordinators.commit_offsets
    errors = commit(plan.group, plan.offsets) if plan.offsets else {}
    wrong = [f"{topic}-{number}: {why}" for (topic, number), why in errors.items() if why is not None]
    if wrong:
        failures[f"group {plan.group!r}"] = ", ".join(wrong[:MOST_NAMED])
    return bool(wrong)


def _commit_offsets(log: SparkLog, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    log.commit_offsets(group, offsets)


def _show_reset(
    plans: Sequence[ResetPlan], rows: Sequence[Row], *, export: bool, with_group: bool, executed: bool
) -> None:
    from sparklog.client.offset_reset import plan_csv

    if export:
        for line in plan_csv(plans, with_group=with_group).split("\n")[:-1]:
            tell(line)
    elif current().json:
        show_json({"dry_run": not executed, "partitions": list(rows)})
    else:
        show_rows(RESET_COLUMNS, rows)


def _partitions_of(log: SparkLog, topics: Sequence[str]) -> list[TopicPartition]:
    """Of `orders` all partitions, of `orders:0,3` two."""
    words = [text.partition(":") for text in topics]
    require_topics(log, [topic for topic, _, _ in words])
    found = [
        (topic, number)
        for topic, colon, text in words
        for number in (parse_numbers(text) if colon else range(log.partition_count(topic)))
    ]
    for topic, number in found:
        log.image.partition(topic, number)  # is it there?
    return list(dict.fromkeys(found))


# --- groups alter ------------------------------------------------------------------------------------


@groups.command("alter")
@click.option("--group", "-g", "group", metavar="NAME", required=True, help="The group.")
@config_option
@delete_config_option
@timeout_option
def alter(group: str, configs: dict[str, str], deleted: tuple[str, ...], timeout_ms: int) -> None:
    """Change a group's settings, through a broker."""
    if not configs and not deleted:
        raise click.UsageError("nothing to alter: give --config key=value or --delete-config KEY.")
    log, coordinators = _with_broker(timeout_ms)
    refused = coordinators.alter_settings(group, configs, deleted)
    if refused is not None:
        raise click.ClickException(f"group {group!r}: {refused}")
    _show_settings(log, coordinators, [group], tool=None, with_defaults=True)


# --- groups delete, delete-offsets, expire -----------------------------------------------------------


@groups.command("delete")
@groups_option
@all_groups_option
@tool_option
@yes_option
@force_option
@timeout_option
def delete(names: tuple[str, ...], all_groups: bool, yes: bool, force: bool, timeout_ms: int) -> None:
    """Delete groups without members: their consumers begin anew."""
    from sparklog.client.group_expiry import delete_groups, refuse_served_root
    from sparklog.client.share_groups import forget_share_group

    log = current().open_log()
    coordinators = current().coordinators(log, timeout_ms=timeout_ms)
    if coordinators is None:
        refuse_served_root(log, force=force)
    wanted = _wanted(log, coordinators, names, all_groups)
    listed = ", ".join(map(repr, wanted[:MOST_NAMED])) + (", ..." if len(wanted) > MOST_NAMED else "")
    if wanted:
        question = f"Delete {counted(len(wanted), 'group')} ({listed}), and all offsets committed?"
        confirm(question, yes=yes, required=all_groups)
    if coordinators is not None:
        errors = coordinators.delete_groups(wanted)
    else:
        shares = [name for name in wanted if name in log.image.shares]
        errors = delete_groups(log, [name for name in wanted if name not in shares], force=force)
        for name in shares:
            errors[name] = None if forget_share_group(log, name) else "GROUP_ID_NOT_FOUND"
    done = [name for name in wanted if errors[name] is None]
    if current().json:
        show_json([{"group": name, "deleted": name in done, "error": errors[name]} for name in wanted])
    elif done:
        tell(f"Deletion of requested consumer groups ({', '.join(map(repr, done))}) was successful.")
    failures = {f"group {name!r}": why for name, why in errors.items() if why is not None}
    _raise_failures(failures, len(wanted), "groups")


@groups.command("delete-offsets")
@click.option("--group", "-g", "group", metavar="NAME", required=True, help="The group.")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="T[:P,...]",
    help="A topic, or some of its partitions.",
)
@tool_option
@yes_option
@force_option
@timeout_option
def delete_offsets(group: str, topics: tuple[str, ...], yes: bool, force: bool, timeout_ms: int) -> None:
    """Delete what a group has committed for a topic that no member of it reads."""
    from sparklog.client.group_expiry import refuse_served_root

    log = current().open_log()
    coordinators = current().coordinators(log, timeout_ms=timeout_ms)
    if coordinators is None:
        refuse_served_root(log, force=force)
    _wanted(log, coordinators, [group], all_groups=False)
    if group in log.image.shares:
        _delete_share_offsets(log, coordinators, group, topics, yes=yes)
        return
    committed = log.committed_offsets(group)
    if not committed:
        raise _no_such_group(log, group)
    chosen: list[TopicPartition] = []
    for text in topics:
        topic, colon, numbers = text.partition(":")
        found = [at for at in sorted(committed) if at[0] == topic]  # the topic may be gone
        chosen += [(topic, number) for number in parse_numbers(numbers)] if colon else found
        if not colon and not found:
            raise click.ClickException(f"group '{group}' has committed nothing for topic {topic!r}.")
    confirm(f"Delete the offsets of group {group} in {counted(len(chosen), 'partition')}?", yes=yes)
    whole: str | None = None
    errors: Mapping[TopicPartition, str | None] = dict.fromkeys(chosen)
    if coordinators is None:
        log.commit_offsets(group, dict.fromkeys(chosen))
    else:
        whole, errors = coordinators.delete_offsets(group, chosen)
    if whole is not None:
        raise click.ClickException(f"group '{group}': {whole}.")
    rows = [
        {"topic": at[0], "partition": at[1], "status": f"Error: {why}" if why else "Successful", "error": why}
        for at, why in sorted(errors.items())
    ]
    show_rows("topic partition status", rows)
    failures = {f"{at[0]}-{at[1]}": why for at, why in errors.items() if why is not None}
    _raise_failures(failures, len(errors), "partitions")


def _delete_share_offsets(
    log: SparkLog, coordinators: GroupCoordinators | None, group: str, topics: Sequence[str], *, yes: bool
) -> None:
    """The same of a share group: it begins anew in whole topics."""
    from sparklog.client.share_groups import forget_share_group, share_offsets

    known = {topic for topic, _ in share_offsets(log.image, group)}
    for topic in topics:
        if topic not in known:
            hint = ": give whole topics" if ":" in topic else ""
            raise click.ClickException(f"share group '{group}' has not begun in topic {topic!r}{hint}.")
    confirm(f"Delete the offsets of share group {group} in {counted(len(topics), 'topic')}?", yes=yes)
    errors: Mapping[str, str | None] = dict.fromkeys(topics)
    if coordinators is None:
        forget_share_group(log, group, topics)
    else:
        errors = coordinators.delete_share_offsets(group, topics)
    rows = [
        {"topic": topic, "partition": None, "status": f"Error: {why}" if why else "Successful", "error": why}
        for topic, why in errors.items()
    ]
    show_rows("topic partition status", rows)
    _raise_failures({topic: why for topic, why in errors.items() if why}, len(errors), "topics")


@groups.command("expire")
@click.option(
    "--older-than",
    "retention_ms",
    callback=parse_duration,
    metavar=DURATION,
    required=True,
    help="Groups that have committed nothing for so long.",
)
@click.option("--group", "-g", "names", multiple=True, metavar="NAME", help="Only this group.")
@dry_run_option
@force_option
def expire(retention_ms: int, names: tuple[str, ...], dry_run: bool, force: bool) -> None:
    """Remove the offsets of groups that are silent: a consumer that comes back begins anew.

    A broker does that by itself, by offsets.retention.minutes.
    """
    from sparklog.client.group_expiry import expire_groups

    log = current().open_log()
    gone = expire_groups(log, retention_ms, names or None, force=force, dry_run=dry_run)
    rows = [dataclasses.asdict(one) for one in gone]
    if current().json:
        show_json({"dry_run": dry_run, "groups": rows})
    else:
        show_rows(SILENT_COLUMNS, rows, empty="No group is older than that.")
