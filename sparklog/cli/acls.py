"""`sparklog acls`: who may do what at brokers, with the options of kafka-acls.

The ACLs are in the root, so no broker is asked; brokers with an authorizer follow them. Whoever can write the
root needs no permission of theirs.
Not here: what ACLs allow (sparklog/client/authorizer.py), what the storage allows (grants.py).
Sources: Kafka AclCommand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sparklog.cli.framework import Group, confirm, current, dry_run_option, yes_option
from sparklog.cli.output import show_json, show_rows, tell
from sparklog.wording import counted

if TYPE_CHECKING:
    from sparklog.client.authorizer import AclFilter
    from sparklog.metadata import Acl, Image

COLUMNS = "resource_type:RESOURCE name pattern_type:PATTERN principal host operation permission"
KAFKA = "kafka-acls"
F = TypeVar("F", bound=Callable[..., None])
Resource = tuple[str, str]  # type, name
_CLUSTER = "CLUSTER", "kafka-cluster"
_RESOURCES: Mapping[str, tuple[str, str]] = {
    "topics": ("TOPIC", "--topic"),
    "groups": ("GROUP", "--group"),
    "ids": ("TRANSACTIONAL_ID", "--transactional-id"),
    "tokens": ("DELEGATION_TOKEN", "--delegation-token"),
    "users": ("USER", "--user-principal"),
}
_OF_PRODUCERS = {
    "TOPIC": ("WRITE", "DESCRIBE", "CREATE"),
    "TRANSACTIONAL_ID": ("WRITE", "DESCRIBE"),
}
_OF_CONSUMERS = {"TOPIC": ("READ", "DESCRIBE"), "GROUP": ("READ",)}


@click.group("acls", cls=Group)
def acls() -> None:
    """Who may do what at brokers: list, add, remove."""


# --- options -----------------------------------------------------------------------------------------


def _many(name: str, target: str, text: str) -> Callable[[F], F]:
    return click.option(name, target, multiple=True, metavar="NAME", help=text)


def resource_options(function: F) -> F:
    """Add the options that name resources."""
    for option in (
        click.option(
            "--resource-pattern-type",
            "pattern",
            type=click.Choice(["literal", "prefixed", "any", "match"], case_sensitive=False),
            default="literal",
            help="prefixed: of names that begin so; any, match (whatever applies to the name): not to add.",
        ),
        _many("--user-principal", "users", "A user."),
        _many("--delegation-token", "tokens", "A delegation token."),
        _many("--transactional-id", "ids", "A transactional id; * is all."),
        click.option("--cluster", is_flag=True, help="The cluster."),
        _many("--group", "groups", "A group; * is all."),
        click.option("--topic", "-t", "topics", multiple=True, metavar="NAME", help="A topic; * is all."),
    ):
        function = option(function)
    return function


def entry_options(function: F) -> F:
    """Add the options that say who may do what."""
    for option in (
        click.option("--idempotent", is_flag=True, help="With --producer: IdempotentWrite on the cluster."),
        click.option("--consumer", is_flag=True, help="Read and Describe on topics, Read on groups."),
        click.option("--producer", is_flag=True, help="Write, Describe and Create on topics."),
        click.option(
            "--operation",
            "operations",
            multiple=True,
            metavar="NAME",
            help="Read, Write, ... (default: All).",
        ),
        _many("--deny-host", "deny_hosts", "Where the denied ones are (default: anywhere)."),
        _many("--allow-host", "allow_hosts", "Where the allowed ones are (default: anywhere)."),
        _many("--deny-principal", "denied", "Who may not: User:name."),
        _many("--allow-principal", "allowed", "Who may: User:name; User:* is everybody."),
    ):
        function = option(function)
    return function


def _resources(given: Mapping[str, Any]) -> list[Resource]:
    found = [(kind, name.strip()) for key, (kind, _) in _RESOURCES.items() for name in given[key]]
    if given["cluster"] or given.get("idempotent"):
        found.append(_CLUSTER)
    return found


def _operations(given: Mapping[str, Any], resource: Resource) -> set[str]:
    """Return the operations on a resource, of the roles or the option; raise click.UsageError."""
    from sparklog.client.authorizer import OPERATIONS
    from sparklog.metadata import AclOperation, ResourceType

    kind = resource[0]
    if given["producer"] or given["consumer"]:
        roles = [_OF_PRODUCERS] * given["producer"] + [_OF_CONSUMERS] * given["consumer"]
        found = {operation for role in roles for operation in role.get(kind, ())}
        return found | ({"IDEMPOTENT_WRITE"} if resource == _CLUSTER and given["idempotent"] else set())
    known = {one.replace("_", ""): str(one) for one in AclOperation}
    named = [one.strip().upper().replace("_", "") for one in given["operations"] or ["All"]]
    if unknown := [one for one in named if one not in known]:
        raise click.UsageError(
            f"no operation {unknown[0]}: {', '.join(one.title().replace('_', '') for one in AclOperation)}."
        )
    found = {known[one] for one in named}
    supported = {"ALL", *map(str, OPERATIONS[ResourceType(kind)])}
    if found - supported:
        raise click.UsageError(
            f"ResourceType {kind} only supports operations {', '.join(sorted(supported))}."
        )
    return found


def _entries(given: Mapping[str, Any], resource: Resource) -> Iterator[tuple[str, str, str, str]]:
    """Yield principal, host, operation and permission of each ACL of a resource."""
    operations = sorted(_operations(given, resource))
    for permission, who, hosts in (("ALLOW", "allowed", "allow_hosts"), ("DENY", "denied", "deny_hosts")):
        for principal, host, operation in itertools.product(given[who], given[hosts] or ["*"], operations):
            yield principal.strip(), host.strip(), operation, permission


def _validate_roles(given: Mapping[str, Any], resources: Sequence[Resource]) -> None:
    kinds = {kind for kind, _ in resources}
    if given["operations"] and (given["producer"] or given["consumer"]):
        raise click.UsageError("--producer and --consumer say the operations: leave out --operation.")
    if given["producer"] and "TOPIC" not in kinds:
        raise click.UsageError("with --producer, give --topic.")
    if given["consumer"] and not {"TOPIC", "GROUP"} <= kinds:
        raise click.UsageError("with --consumer, give --topic and --group.")
    if given["idempotent"] and not given["producer"]:
        raise click.UsageError("--idempotent goes with --producer.")
    if not resources:
        raise click.UsageError(
            "give at least one of --topic, --group, --cluster, --transactional-id, --delegation-token and "
            "--user-principal."
        )


# --- list --------------------------------------------------------------------------------------------


@acls.command("list")
@resource_options
@click.option("--principal", "principals", multiple=True, metavar="NAME", help="Only of these.")
@click.option("--as", "tool", type=click.Choice([KAFKA]), hidden=True)
def list_acls(principals: tuple[str, ...], tool: str | None, **given: Any) -> None:
    """List the ACLs, of some resources or of all."""
    image = current().open_root().image
    found = _found(image, _filters(given))
    if principals:
        found = [acl for acl in found if acl.principal in principals]
    if tool is None or current().json:
        show_rows(COLUMNS, [acl._asdict() for acl in found], empty="There are no ACLs.")
        return
    for resource, some in itertools.groupby(found, key=lambda acl: acl[:3]):
        tell(f"Current ACLs for resource `{_pattern(*resource)}`:")
        for acl in some:
            tell("", _entry(acl))
        tell("")


def _filters(given: Mapping[str, Any]) -> list[AclFilter]:
    """Return a filter for each named resource; one for all if none is named."""
    from sparklog.client.authorizer import AclFilter

    pattern = given["pattern"].upper()
    resources = _resources(given)
    if not resources:
        return [AclFilter()]
    specific = pattern if pattern in {"LITERAL", "PREFIXED"} else None
    return [
        AclFilter(
            kind,
            name,
            "LITERAL" if kind == "CLUSTER" else specific,
            matches=pattern == "MATCH" and kind != "CLUSTER",
        )
        for kind, name in resources
    ]


def _found(image: Image, filters: Sequence[AclFilter]) -> list[Acl]:
    return sorted({acl for wanted in filters for acl in wanted.found_in(image.acls)})


def _pattern(kind: str, name: str, pattern: str) -> str:
    return f"ResourcePattern(resourceType={kind}, name={name}, patternType={pattern})"


def _entry(acl: Acl) -> str:
    return (
        f"(principal={acl.principal}, host={acl.host}, operation={acl.operation}, "
        f"permissionType={acl.permission})"
    )


# --- add and remove ----------------------------------------------------------------------------------


@acls.command("add")
@resource_options
@entry_options
@dry_run_option
def add(dry_run: bool, **given: Any) -> None:
    """Allow or deny operations. A matching DENY beats every ALLOW."""
    from sparklog.metadata import Acl, plan_change_acls, validate_acl

    pattern = given["pattern"].upper()
    if pattern not in {"LITERAL", "PREFIXED"}:
        raise click.UsageError(f"--resource-pattern-type {given['pattern']} is not for adding ACLs.")
    resources = _resources(given)
    _validate_roles(given, resources)
    if not given["allowed"] and not given["denied"]:
        raise click.UsageError("give --allow-principal or --deny-principal.")
    wanted = [
        Acl(kind, name, "LITERAL" if kind == "CLUSTER" else pattern, *entry)
        for kind, name in resources
        for entry in _entries(given, (kind, name))
    ]
    for acl in wanted:
        validate_acl(acl)
    log = current().open_root(create=False)
    new = [acl for acl in wanted if acl not in log.image.acls]
    if not dry_run:
        log.metadata.publish(lambda image: plan_change_acls(image, added=wanted))
    if current().json:
        show_json({"dry_run": dry_run, "added": [acl._asdict() for acl in new]})
        return
    for acl in wanted:
        if acl not in new:
            tell(f"Acl (pattern={_pattern(*acl[:3])}, entry={_entry(acl)}) already exists.")
    for resource, some in itertools.groupby(sorted(new), key=lambda acl: acl[:3]):
        begin = "Would add" if dry_run else "Adding"
        tell(f"{begin} ACLs for resource `{_pattern(*resource)}`:")
        for acl in some:
            tell(" ", _entry(acl))
        tell("")


@acls.command("remove")
@resource_options
@entry_options
@dry_run_option
@yes_option
def remove(dry_run: bool, yes: bool, **given: Any) -> None:
    """Remove ACLs of resources: all of them, or those of the principals and operations."""
    from sparklog.metadata import plan_change_acls

    _validate_roles(given, _resources(given))
    log = current().open_root()
    found = _found(log.image, _removing(given))
    if not dry_run and found:
        shown = "\n".join(f" {_pattern(*acl[:3])} {_entry(acl)}" for acl in found[:20])
        more = f"\n and {len(found) - 20} more" if len(found) > 20 else ""
        confirm(f"Remove {counted(len(found), 'ACL')}?", yes=yes, warning=shown + more, required=True)
        log.metadata.publish(lambda image: plan_change_acls(image, removed=found))
    if current().json:
        show_json({"dry_run": dry_run, "removed": [acl._asdict() for acl in found]})
        return
    begin = "Would remove" if dry_run else "Removed"
    tell(f"{begin} {counted(len(found), 'ACL')}.")
    for acl in found:
        tell("", f"{_pattern(*acl[:3])} {_entry(acl)}")


def _removing(given: Mapping[str, Any]) -> list[AclFilter]:
    """Return what to remove: whole resources, or the entries that the options name."""
    filters = _filters(given)
    if not (given["allowed"] or given["denied"]):
        if given["operations"] or given["producer"] or given["consumer"]:
            raise click.UsageError("give --allow-principal or --deny-principal, too.")
        return filters
    return [
        wanted._replace(principal=principal, host=host, operation=operation, permission=permission)
        for wanted in filters
        for principal, host, operation, permission in _entries(
            given, (str(wanted.resource_type), str(wanted.name))
        )
    ]
