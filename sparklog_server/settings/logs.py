"""Settings of the broker's own log files."""

import dataclasses

from sparklog.log.setting import setting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """The fields' names are the keys with underscores."""

    logs_dir: str = setting(
        "sparklog.logs.dir",
        default="",
        doc="""Directory of the broker's own log files, rolled every midnight; another one for each
        broker; empty: to stderr.
        controller.log: who is elected, which brokers come and go; state-change.log: states of this broker,
        and of brokers, topics, partitions and replicas as they change; log-cleaner.log: maintenance;
        request.log: requests; server.log: everything else.""",
    )
    logs_format: str = setting(
        "sparklog.logs.format",
        default="text",
        choices=("text", "json"),
        doc="""text: a line to read; json: an object per line, for log collectors.""",
    )
    logs_level: str = setting(
        "sparklog.logs.level",
        default="INFO",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        doc="""What is logged at least.""",
    )
    logs_requests: bool = setting(
        "sparklog.logs.requests",
        default=False,
        doc="""Log every request and how long it took. Costs a line per request.""",
    )
    logs_keep_days: int = setting(
        "sparklog.logs.keep.days",
        default=7,
        minimum=1,
        maximum=3650,
        unit="days",
        doc="""How many rolled log files of each kind are kept.""",
    )
