"""The command `sparklog-server`: its options, and exit codes.

Exit codes: 0 stopped as asked, 1 failed, 2 wrong settings, 3 stopped at once by a second signal.
Ready: one line per listener on stdout, `sparklog-server: listening on PLAINTEXT://127.0.0.1:40123`, once
clients are accepted; so a port of 0 can be used by whoever starts the broker.
Not here: what a broker needs, which is imported when one is to run (running.py): so `--help` answers at once.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from sparklog.errors import InvalidRequestError, SparklogError, shown
from sparklog_server import CONFIG_VARIABLE

EXIT_SETTINGS = 2


@click.command("sparklog-server", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "properties", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option("--root", metavar="DIR", help="The root (log.dirs); made if it is not there.")
@click.option("--listeners", metavar="LIST", help="Where to listen, such as PLAINTEXT://localhost:9092.")
@click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar=CONFIG_VARIABLE,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A server.properties; see conf/server.properties.",
)
@click.option("--override", "overrides", metavar="KEY=VALUE", multiple=True, help="Any setting; repeatable.")
@click.version_option(package_name="sparklog", prog_name="sparklog-server")
@click.pass_context
def cli(
    context: click.Context,
    properties: Path | None,
    root: str | None,
    listeners: str | None,
    file: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Serve a root to Kafka clients.

    FILE is a server.properties, as --config; Kafka's own starts a broker too.

    Settings come from flags, else from the environment (SPARKLOG_SERVER_NUM_PARTITIONS for num.partitions),
    else from --config, else they have the defaults of conf/server.properties.
    """
    if properties is not None:
        if context.get_parameter_source("file") is ParameterSource.COMMANDLINE:
            raise click.UsageError("Give the file once: as FILE, or with --config.")
        file = properties
    with _naming_what_is_missing():
        from sparklog_server import running  # noqa: PLC0415 - see the module's docstring
    config = running.load_config(
        file=file, environment=os.environ, flags=_flag_settings(root, listeners, overrides)
    )
    if not config.broker.log_dirs or "," in config.broker.log_dirs:
        raise click.UsageError("Give exactly one root: --root DIR, or log.dirs=DIR.")
    code = running.run(config)
    if code == running.EXIT_FAILED:
        # A thread may hang in the storage that has just failed; Python would wait for it.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """Console script."""
    try:
        cli(prog_name="sparklog-server")
    except SparklogError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_SETTINGS)


def _flag_settings(root: str | None, listeners: str | None, overrides: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for one in overrides:
        key, found, value = one.partition("=")
        if not found:
            raise click.UsageError(f"--override: found {shown(one, one)}, expected key=value.")
        settings[key.strip()] = value.strip()
    given = {"log.dirs": root, "listeners": listeners}
    return settings | {key: flag for key, flag in given.items() if flag is not None}


@contextlib.contextmanager
def _naming_what_is_missing() -> Iterator[None]:
    """Imports under this say what to install, instead of ending in a traceback."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package.startswith("sparklog"):
            raise
        raise InvalidRequestError(
            "SERVER_NOT_INSTALLED",
            f"sparklog-server needs the package {package}, which is not installed",
            fix="Install it: pip install 'sparklog[server]'",
        ) from error
