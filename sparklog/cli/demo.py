"""`sparklog demo`: the end-to-end demonstration of sparklog/demo, with its options."""

from __future__ import annotations

from pathlib import Path

import click

from sparklog.cli.framework import Command, current


@click.command("demo", cls=Command)
@click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("sparklog-demo"),
    show_default=True,
    help="Where the log, the plot and the jobs' logs go; an earlier demo there is replaced.",
)
@click.option("--keep", is_flag=True, help="Keep the unpacked CSV and the checkpoint, too.")
def demo(output_dir: Path, keep: bool) -> None:
    """Send a year of flights through the log, exactly once, while it is being killed.

    Needs pip install 'sparklog[demo]' and Java 17. With --root the log goes to that directory or
    bucket (s3://, gs://, abfss://), which must be empty.
    """
    from sparklog.clock import SystemClock
    from sparklog.demo.run import Reporter, run

    clock = SystemClock()
    if current().bootstrap_server or current().cluster_id:
        raise click.UsageError("the demo makes a log of its own: give --root DIR, or nothing.")
    root = current().root
    run(output_dir, root, keep=keep, clock=clock, reporter=Reporter(clock))
