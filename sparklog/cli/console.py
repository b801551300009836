"""`sparklog console`: the web console of a root, served on this machine. No broker is needed."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import click

from sparklog.cli.framework import Command, current, note

if TYPE_CHECKING:
    from starlette.applications import Starlette


@click.command("console", cls=Command)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8080, show_default=True, help="0: any free one."
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Address to listen on. There is no login: others than this machine's users may read everything.",
)
@click.option(
    "--messages/--no-messages",
    default=None,
    help="Show records, too. Default: only if no other machine can reach the address.",
)
@click.option(
    "--masks",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file of what to hide in records.",
)
@click.option(
    "--schemas",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of TOPIC-value.avsc, TOPIC-key.avsc (Avro) and .desc (Protobuf) files.",
)
@click.option(
    "--history",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="SQLite file that keeps the lag of groups for a day; it is made if it is not there.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Let forms change settings, offsets of groups, topics and records, each after a preview. Only on an "
    "address that no other machine can reach.",
)
def console(
    port: int,
    host: str,
    messages: bool | None,
    masks: Path | None,
    schemas: Path | None,
    history: Path | None,
    write: bool,
) -> None:
    """Look at a root in a browser: topics, messages, groups, commits, transactions, maintenance.

    It changes nothing without --write. Needs pip install 'sparklog[console]'.
    """
    try:
        import uvicorn  # noqa: F401 - is it there?

        from sparklog.console.app import create_app, is_loopback
        from sparklog.console.message_masks import load_rules
    except ModuleNotFoundError as error:
        raise click.ClickException(
            f"the console needs the package {error.name}, which is not installed: "
            "pip install 'sparklog[console]'"
        ) from None
    is_local = is_loopback(host)
    if write and not is_local:
        raise click.UsageError(
            f"--write needs a loopback address, since there is no login, and found --host {host}."
        )
    log = current().open_log()
    if not is_local:
        note(f"Warning: everybody who reaches {host} may read this root: there is no login.")
    rules = load_rules(masks, schemas)
    app = create_app(
        log,
        allowed_hosts=("localhost", socket.gethostname(), host),  # and every IP address
        messages=rules if (is_local if messages is None else messages) else None,
        history_file=history,
        write=write,
        security=current().security(),
    )
    _serve(app, host, port, log.url)


def _serve(app: Starlette, host: str, port: int, url: str) -> None:
    """Serve until Ctrl-C."""
    import uvicorn

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, port), family=family) as listening:
        at = f"[{host}]" if ":" in host else host
        note(f"The console of {url} is at http://{at}:{listening.getsockname()[1]}/ (Ctrl-C ends it)")
        config = uvicorn.Config(
            app,
            log_config=None,  # warnings go to stderr
            access_log=False,
            server_header=False,
            ws="none",
            timeout_graceful_shutdown=5,
        )
        server = uvicorn.Server(config)
        stop = server.shutdown  # waits for answers to end, which a live tail does not

        async def end_streams_and_stop(sockets: list[socket.socket] | None = None) -> None:
            app.state.end_streams()
            await stop(sockets)

        server.shutdown = end_streams_and_stop  # type: ignore[method-assign]
        with contextlib.suppress(KeyboardInterrupt):  # uvicorn raises it again when it has stopped
            server.run(sockets=[listening])
