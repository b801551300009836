"""`sparklog doctor`: is everything here that sparklog needs, and if not, what to do.

Exit code 1 when a check failed; warnings alone are 0. The checks are in environment_checks.py and
root_checks.py.
"""

from __future__ import annotations

import click

from sparklog.cli.environment_checks import Finding, Status, check_environment
from sparklog.cli.group import OnceCommand
from sparklog.cli.output import show_json, tell
from sparklog.cli.settings import common_options, current


@click.command("doctor", cls=OnceCommand)
@click.option("--deep", is_flag=True, help="Read every segment of the root and compare all checksums.")
@common_options
def doctor(deep: bool) -> None:
    """Check Python, Java, Spark, and a root when one is named."""
    from sparklog.cli.root_checks import check_root

    settings = current()
    root = settings.named_root()
    if deep and not root:
        raise click.UsageError("--deep reads a root: give --root DIR, or set SPARKLOG_ROOT=DIR.")
    findings = []
    of_root = check_root(root, deep=deep, cluster_id=settings.cluster_id) if root else ()
    for found in (*check_environment(), *of_root):
        findings.append(found)
        if not settings.json:
            _show(found)
    if settings.json:
        show_json(
            [
                {"check": f.check, "status": f.status.value, "detail": f.detail, "fix": f.fix or None}
                for f in findings
            ]
        )
    failed = [found.check for found in findings if found.status is Status.FAIL]
    if failed:
        raise click.ClickException(f"{len(failed)} of {len(findings)} checks failed: {', '.join(failed)}.")


def _show(found: Finding) -> None:
    tell(f"{found.status.value:<5} {found.check:<16} {found.detail}")
    if found.fix:
        tell(f"{'':<22} fix: {found.fix}")
