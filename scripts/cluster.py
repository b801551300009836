"""Several brokers on one root, to play with: starts them, says where they are and what to try, stops them.

usage: python scripts/cluster.py [--root DIR] [--logs DIR] [--brokers N] [--port P] [--override KEY=VALUE]...

Broker n listens at port P + n - 1 (0: any free one) and logs into DIR/n. One that is killed stays away, and
how to start it again is said. Ctrl-C, or SIGTERM, stops all, one after the other: each hands over first.
"""

import argparse
import shlex
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from sparklog.cli.inputs import Stop

BINARIES = Path(sys.executable).parent
STOP_SECONDS = 60
HOST = "localhost"


@dataclass
class Broker:
    """A process that is ours to end."""

    node_id: int
    words: list[str]
    process: subprocess.Popen[str]
    log: Path | None  # where it says why it ends
    address: str = ""

    def await_ready(self) -> None:
        """Until it tells where it listens; SystemExit if it ends instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            code = self.process.wait()
            lines = self.log.read_text().splitlines() if self.log and self.log.exists() else []
            why = f": {lines[-1]} ({self.log})" if lines else ""
            raise SystemExit(f"broker {self.node_id} ended with exit code {code}{why}")
        self.address = line.rpartition("://")[2]

    def stop(self) -> None:
        """SIGTERM, and wait; SIGKILL if that takes too long."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def start(node_id: int, arguments: argparse.Namespace) -> Broker:
    """In a session of its own: Ctrl-C is for us, who end one after the other."""
    port = arguments.port + node_id - 1 if arguments.port else 0
    settings = [f"node.id={node_id}", *arguments.override]
    if arguments.logs:
        settings.insert(1, f"sparklog.logs.dir={arguments.logs / str(node_id)}")
    words = [str(BINARIES / "sparklog-server"), "--root", str(arguments.root)]
    words += ["--listeners", f"PLAINTEXT://{HOST}:{port}"]
    words += [word for one in settings for word in ("--override", one)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)  # noqa: S603
    log = arguments.logs / str(node_id) / "server.log" if arguments.logs else None
    return Broker(node_id, words, process, log)


def introduce(brokers: list[Broker], root: str) -> str:
    """Where they are, and what to try."""
    servers = ",".join(broker.address for broker in brokers)
    victim = brokers[min(1, len(brokers) - 1)]
    replicas = ",".join(str(one.node_id) for one in reversed(brokers))
    tries = [
        ("sparklog topics create --topic orders --partitions 6", ""),
        ("sparklog topics describe --topic orders", "who leads what"),
        (f"kill -9 {victim.process.pid}", f"broker {victim.node_id}; then, some seconds later:"),
        ("sparklog brokers list", "it is fenced, and leads nothing"),
        ("sparklog metadata log", "what the controller did about it"),
        (f"sparklog partitions reassign --topic orders --replicas {replicas}", ""),
    ]
    lines = [
        f"bootstrap servers  {servers}",
        f"root               {root}",
        *(f"broker {one.node_id:<11} {one.address}, process {one.process.pid}" for one in brokers),
        "",
        "in another shell:",
        f"  export SPARKLOG_ROOT={shlex.quote(root)} PATH={shlex.quote(str(BINARIES))}:$PATH",
        *(f"  {words:<56}{f'# {why}' if why else ''}".rstrip() for words, why in tries),
        "",
        "Ctrl-C stops all brokers.",
    ]
    return "\n".join(lines)


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--root", default=".cluster/root")
    parser.add_argument("--logs", type=Path)
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--override", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if "://" not in arguments.root:
        arguments.root = str(Path(arguments.root).absolute())
    told = Stop()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: told.ask())
    brokers: list[Broker] = []
    try:
        brokers.append(start(1, arguments))  # alone at first, so that it is the controller
        brokers[0].await_ready()
        for node_id in range(2, arguments.brokers + 1):
            brokers.append(start(node_id, arguments))  # noqa: PERF401 - one that fails must not hide the others
        for broker in brokers[1:]:
            broker.await_ready()
        print(introduce(brokers, arguments.root), flush=True)
        watch(brokers, told)
    finally:
        for broker in brokers:
            broker.stop()
    print("stopped", flush=True)


def watch(brokers: list[Broker], told: Stop) -> None:
    """Until we are told to stop, or nobody is left."""
    running = list(brokers)
    while running and not told.wait(0.2):
        for broker in [one for one in running if one.process.poll() is not None]:
            running.remove(broker)
            code = broker.process.returncode
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            print(
                f"broker {broker.node_id} {how}; to start it again:\n  {shlex.join(broker.words)}", flush=True
            )


if __name__ == "__main__":
    main()
