"""The command `sparklog-server`: its options, and exit codes.

Exit codes: 0 stopped gracefully, 1 failed, 2 wrong settings, 3 stopped immediately by a second signal.
Ready: one line per listener on stdout, `sparklog-server: listening on PLAINTEXT://127.0.0.1:40123`, once
clients are accepted; so the parent process can use port 0 and read the port.
Not here: the broker, which is only imported to run one (running.py), so that `--help` is fast.
"""

import contextlib
import importlib.resources
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.core import ParameterSource

from sparklog.errors import InvalidRequestError, SparklogError, shown
from sparklog_server import CONFIG_VARIABLE

EXIT_SETTINGS = 2
SERVER_PROPERTIES = "server.properties"


@click.command("sparklog-server", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument(
    "properties", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False)
)
@click.option("--root", metavar="DIR", help="The root (log.dirs); created if it does not exist.")
@click.option(
    "--listeners", metavar="LIST", help="Addresses to listen on, such as PLAINTEXT://localhost:9092."
)
@click.option(
    "--config",
    "file",
    metavar="FILE",
    envvar=CONFIG_VARIABLE,
    type=click.Path(path_type=Path, dir_okay=False),
    help="A server.properties; --print-config prints one.",
)
@click.option("--override", "overrides", metavar="KEY=VALUE", multiple=True, help="Any setting; repeatable.")
@click.option(
    "--print-config",
    "printed",
    metavar="[NAME]",
    is_flag=False,
    flag_value=SERVER_PROPERTIES,
    help="Print the annotated server.properties, or another file of conf/, and exit.",
)
@click.version_option(package_name="sparklog", prog_name="sparklog-server")
@click.pass_context
def cli(
    context: click.Context,
    properties: Path | None,
    root: str | None,
    listeners: str | None,
    file: Path | None,
    overrides: tuple[str, ...],
    printed: str | None,
) -> None:
    """Serve a root to Kafka clients.

    FILE is a server.properties, as --config; Kafka's own files work too.

    Precedence of settings: flags, the environment (SPARKLOG_SERVER_NUM_PARTITIONS for num.partitions),
    --config, the defaults of conf/server.properties.
    """
    if printed is not None:
        click.echo(conf_file(printed), nl=False)
        return
    if properties is not None:
        if context.get_parameter_source("file") is ParameterSource.COMMANDLINE:
            raise click.UsageError("Give the file once: as FILE, or with --config.")
        file = properties
    with _missing_package_errors():
        from sparklog_server import running  # noqa: PLC0415 - see the module's docstring
    config = running.load_config(
        file=file, environment=os.environ, flags=_flag_settings(root, listeners, overrides)
    )
    if not config.broker.log_dirs or "," in config.broker.log_dirs:
        raise click.UsageError("Give exactly one root: --root DIR, or log.dirs=DIR.")
    code = running.run(config)
    if code == running.EXIT_FAILED:
        # Do not wait for threads, as Python would: one may hang in the failed storage.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def main() -> None:
    """Run the console script."""
    try:
        cli(prog_name="sparklog-server")
    except SparklogError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(EXIT_SETTINGS)


def conf_file(name: str) -> str:
    """Return the text of a file of conf/; a wheel has that folder inside of the package."""
    package = importlib.resources.files("sparklog_server")
    installed, checkout = package / "conf", Path(__file__).resolve().parents[1] / "conf"
    folder = installed if installed.is_dir() else checkout
    names = sorted(path.name for path in folder.iterdir())
    if name not in names:
        raise click.UsageError(
            f"--print-config: found {shown(name, name)}, expected one of {', '.join(names)}."
        )
    return (folder / name).read_text()


def _flag_settings(root: str | None, listeners: str | None, overrides: tuple[str, ...]) -> dict[str, str]:
    settings = {}
    for override in overrides:
        key, found, value = override.partition("=")
        if not found:
            raise click.UsageError(f"--override: found {shown(override, override)}, expected key=value.")
        settings[key.strip()] = value.strip()
    given = {"log.dirs": root, "listeners": listeners}
    return settings | {key: flag for key, flag in given.items() if flag is not None}


@contextlib.contextmanager
def _missing_package_errors() -> Iterator[None]:
    """Turn a missing package into an error that names the package to install."""
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
