"""For spark-submit: `maintenance_job.py optimize|compact ROOT [TOPIC]...`; prints a line of JSON.

    JOB=$(python -c 'import sparklog.spark.maintenance_job as job; print(job.__file__)')
    spark-submit $JOB optimize ROOT

Storage options come from the environment of the driver and of the executors (docs/s3.md).
Not here: the maintenance itself (maintenance.py).
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str]) -> int:
    """Run the command; return the exit code: 0, or 1 with a message on stderr."""
    options = _parser().parse_args(arguments)
    from pyspark.sql import SparkSession

    from sparklog.errors import SparklogError
    from sparklog.spark import configure
    from sparklog.spark.maintenance import compact, optimize

    spark = configure(SparkSession.builder.appName(f"sparklog {options.command}")).getOrCreate()
    topics = options.topics or None
    how: dict[str, Any] = {
        "max_concurrent_file_group_rewrites": options.max_concurrent_file_group_rewrites,
        "dry_run": options.dry_run,
        "cluster_id": options.cluster_id,
    }
    try:
        if options.command == "compact":
            report: Any = compact(spark, options.root, topics, only_due=options.due, **how)
        else:
            how["target_file_size_bytes"] = options.target_file_size_bytes
            report = optimize(spark, options.root, topics, min_input_files=options.min_input_files, **how)
    except SparklogError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    finally:
        spark.stop()
    sys.stdout.write(json.dumps({"dry_run": options.dry_run, **dataclasses.asdict(report)}) + "\n")
    return 0


_COMMANDS = {
    "optimize": "Merge small extents of the topics, or of all, into large segments, by Spark tasks.",
    "compact": "Keep the last record of each key, in the topics, or all, whose cleanup.policy has compact.",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="maintenance_job.py",
        description="Maintenance of a sparklog root by Spark tasks. Prints a line of JSON.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, about in _COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        command.add_argument(
            "root", metavar="ROOT", help="a path that all executors have, or s3://bucket/prefix"
        )
        command.add_argument("topics", metavar="TOPIC", nargs="*", help="default: all")
        command.add_argument("--dry-run", action="store_true", help="only report the due work")
        command.add_argument(
            "--cluster-id", metavar="ID", help="the root that is meant; any other is refused"
        )
        _add_number(
            command,
            "max_concurrent_file_group_rewrites",
            "tasks in a wave; default: twice what Spark runs concurrently",
        )
        if name == "optimize":
            _add_number(command, "target_file_size_bytes", "of segments; default and maximum: segment.bytes")
            _add_number(command, "min_input_files", "merge only N extents of about the same size")
        else:
            command.add_argument(
                "--due", action="store_true", help="only what is due by the topics' settings"
            )
    return parser


def _add_number(command: argparse.ArgumentParser, name: str, about: str) -> None:
    from sparklog.spark.maintenance import LEAST

    def number(text: str) -> int:
        if int(text) < LEAST[name]:
            raise argparse.ArgumentTypeError(f"found {text}, expected at least {LEAST[name]}")
        return int(text)

    command.add_argument(f"--{name.replace('_', '-')}", metavar="N", type=number, help=about)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
