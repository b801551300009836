"""For spark-submit: `maintenance_job.py optimize|compact ROOT [TOPIC]...`; prints a line of JSON.

    JOB=$(python -c 'import sparklog.spark.maintenance_job as job; print(job.__file__)')
    spark-submit $JOB optimize ROOT

Storage options come from the environment of the driver and of the executors (docs/s3.md).
Not here: what it does (maintenance.py).
"""

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str]) -> int:
    """The exit code: 0, or 1 with a message on stderr."""
    options = _parser().parse_args(arguments)
    from pyspark.sql import SparkSession

    from sparklog.errors import SparklogError
    from sparklog.spark import configure
    from sparklog.spark.maintenance import compact, optimize

    spark = configure(SparkSession.builder.appName(f"sparklog {options.command}")).getOrCreate()
    topics = options.topics or None
    try:
        report = (
            optimize(
                spark,
                options.root,
                topics,
                target_file_size_bytes=options.target_file_size_bytes,
                min_input_files=options.min_input_files,
                max_concurrent_file_group_rewrites=options.max_concurrent_file_group_rewrites,
                dry_run=options.dry_run,
                cluster_id=options.cluster_id,
            )
            if options.command == "optimize"
            else compact(
                spark,
                options.root,
                topics,
                only_due=options.due,
                max_concurrent_file_group_rewrites=options.max_concurrent_file_group_rewrites,
                dry_run=options.dry_run,
                cluster_id=options.cluster_id,
            )
        )
    except SparklogError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 1
    finally:
        spark.stop()
    sys.stdout.write(json.dumps({"dry_run": options.dry_run, **dataclasses.asdict(report)}) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="maintenance_job.py", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("optimize", "compact"):
        command = commands.add_parser(name)
        command.add_argument("root")
        command.add_argument("topics", nargs="*")
        command.add_argument("--dry-run", action="store_true")
        command.add_argument("--cluster-id")
        command.add_argument("--max-concurrent-file-group-rewrites", type=int)
        if name == "optimize":
            command.add_argument("--target-file-size-bytes", type=int)
            command.add_argument("--min-input-files", type=int)
        else:
            command.add_argument("--due", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
