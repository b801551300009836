"""The command: ready lines, signals, exit codes, what happens to requests in progress."""

import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import sparklog
from sparklog.testing import broker as testing_broker
from sparklog_server.main import main
from tests.server.fuzzing import fuzzed_frames
from tests.server.settings.test_sources import KAFKAS_OWN
from tests.support.broker_process import BrokerProcess
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow

Start = Callable[..., BrokerProcess]
API_VERSIONS = struct.pack(">hhih", 18, 0, 7, -1)


def answers(client: WireClient) -> bool:
    client.send_frame(API_VERSIONS)
    frame = client.receive_frame()
    return frame is not None and frame[:6] == struct.pack(">ih", 7, 0)


def test_says_where_it_listens_and_stops_when_told(start_process: Start) -> None:
    broker = start_process()
    assert broker.ready_line == f"sparklog-server: listening on PLAINTEXT://127.0.0.1:{broker.port}"
    client = WireClient(broker.host, broker.port)
    assert answers(client)
    code, errors = broker.terminate()
    assert code == 0
    assert client.is_closed()
    client.close()
    own = [line for line in errors.splitlines() if " -> " in line and " commit " not in line]
    assert [line.split(" -> ")[1].split()[0] for line in own] == [
        "STARTING",
        "RECOVERY",
        "RUNNING",
        "PENDING_CONTROLLED_SHUTDOWN",
        "SHUTTING_DOWN",
        "NOT_RUNNING",
    ]


def test_several_listeners(start_process: Start) -> None:
    broker = start_process(
        "--listeners",
        "PLAINTEXT://127.0.0.1:0,IN://127.0.0.1:0",
        "--override",
        "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,IN:PLAINTEXT",
    )
    assert broker.process.stdout is not None
    second = broker.process.stdout.readline().strip()
    assert second.startswith("sparklog-server: listening on IN://127.0.0.1:")
    client = WireClient("127.0.0.1", int(second.rpartition(":")[2]))
    assert answers(client)
    client.close()


def test_a_second_signal_ends_it_at_once(start_process: Start) -> None:
    """A request that waits keeps a graceful stop waiting, until its time is over."""
    broker = start_process("--override", "sparklog.shutdown.timeout.ms=600000")
    client = WireClient(broker.host, broker.port)
    join = struct.pack(">hhih", 11, 0, 1, -1)
    join += b"\x00\x01g" + struct.pack(">i", 10_000) + struct.pack(">h", 0) + b"\x00\x08consumer"
    client.send_frame(join + struct.pack(">i", 1) + b"\x00\x05range" + struct.pack(">i", 0))
    broker.process.send_signal(signal.SIGTERM)
    broker.process.send_signal(signal.SIGINT)
    assert broker.process.wait(60) in {0, 3}  # 0: the group answered before the second one came
    client.close()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Give exactly one root"),
        (["--override", "log.dirs=/a,/b"], "Give exactly one root"),
        (["--override", "x"], "expected key=value"),
        (["--root", "/r", "--override", "num.partitions=x"], "flags: num.partitions: found 'x'"),
        (["--root", "/r", "--listeners", "SASL_SSL://h:1"], "ssl.keystore.location is missing"),
        (["--root", "/r", "--config", "/does/not/exist"], "No such file"),
        (["/does/not/exist", "--root", "/r"], "No such file"),
        (["a", "--config", "b"], "Give the file once"),
    ],
)
def test_wrong_settings_end_with_2(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sparklog-server", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_process_with_wrong_settings_ends_with_2() -> None:
    command = [sys.executable, "-m", "sparklog_server", "--override", "x"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 2
    assert "expected key=value" in result.stderr


def test_a_file_is_an_argument_too_and_kafkas_own_starts(start_process: Start, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KAFKAS_OWN)
    broker = start_process(str(file), env={"SPARKLOG_SERVER_CONFIG": "/does/not/exist"})
    code, errors = broker.terminate()
    assert code == 0
    assert errors.count("ignoring Kafka settings without effect") == 1


def test_a_taken_port_ends_with_1(start_process: Start, tmp_path: Path) -> None:
    taken = start_process()
    told = r"(?s)exit 1: .*; cannot listen on PLAINTEXT://127\.0\.0\.1:\d+: give listeners .* a free port"
    with pytest.raises(RuntimeError, match=told):
        start_process("--listeners", f"PLAINTEXT://127.0.0.1:{taken.port}", root=str(tmp_path / "other"))


def test_where_the_cluster_is_known_no_other_is_served_and_none_is_made(
    start_process: Start, tmp_path: Path
) -> None:
    """A volume that is not mounted: clients would be acknowledged in the empty place."""
    with sparklog.open(tmp_path / "log") as log:
        meant = ("--override", f"sparklog.cluster.id={log.cluster_id}")
    assert start_process(*meant, root=str(tmp_path / "log")).terminate()[0] == 0
    with pytest.raises(RuntimeError, match=r"(?s)exit 1: .*ROOT_NOT_FOUND"):
        start_process(*meant, root=str(tmp_path / "mount" / "log"))
    assert not (tmp_path / "mount").exists()
    sparklog.open(tmp_path / "other").close()
    with pytest.raises(RuntimeError, match=r"(?s)exit 1: .*WRONG_ROOT"):
        start_process(*meant, root=str(tmp_path / "other"))


def test_a_root_outside_the_allowed_ones_ends_with_1(start_process: Start, tmp_path: Path) -> None:
    allowed = {"SPARKLOG_ALLOWED_ROOTS": str(tmp_path / "elsewhere")}
    with pytest.raises(RuntimeError, match=r"(?s)exit 1: .*ROOT_NOT_ALLOWED"):
        start_process(root=str(tmp_path / "log"), env=allowed)
    assert not (tmp_path / "log").exists()


def test_fuzzed_frames_over_a_socket_leave_the_broker_as_it_was(start_process: Start) -> None:
    broker = start_process("--override", "sparklog.logs.level=ERROR")
    process = psutil.Process(broker.process.pid)
    client = WireClient(broker.host, broker.port)

    def memory_after(seed: int) -> int:
        for frame in fuzzed_frames(1500, seed):
            sender = WireClient(broker.host, broker.port)
            sender.send_frame(frame)
            sender.close()
        assert answers(client)
        return int(process.memory_info().rss)

    # The first frames import what only some requests need and fill the allocator's arenas (some
    # 60 MiB, once). Those after them find it there: what they add is what a frame leaves behind.
    warmed = memory_after(seed=3)
    assert memory_after(seed=4) - warmed < 24 << 20
    client.close()
    code, errors = broker.terminate()
    assert (code, "Traceback" in errors) == (0, False), errors


def test_a_thousand_clients_that_announce_much_cost_little(start_process: Start) -> None:
    broker = start_process("--override", "sparklog.logs.level=ERROR")
    process = psutil.Process(broker.process.pid)
    probe = WireClient(broker.host, broker.port)
    assert answers(probe)
    before = process.memory_info().rss
    clients = []
    for _ in range(1000):
        client = WireClient(broker.host, broker.port)
        client.socket.sendall(struct.pack(">i", 100 << 20) + bytes(10_000))
        clients.append(client)
    while len(process.net_connections("tcp")) < 1000 or not answers(probe):
        pass
    grown = process.memory_info().rss - before
    for client in clients:
        client.close()
    assert grown < 64 << 20  # 1,000 x (10 KB that arrived, a task, a buffer)
    assert answers(probe)
    probe.close()


def test_one_that_does_not_end_says_where_it_stands(
    start_process: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no test waits for it forever: what a hanging broker does comes once in a hundred runs."""
    broker = start_process()
    monkeypatch.setattr(testing_broker, "END_SECONDS", 0.1)
    with pytest.raises(AssertionError, match="the broker did not end") as told:
        broker.wait()  # nobody has asked it to end
    assert "publisher.py" in str(told.value)
    assert "serve:" in str(told.value)
    assert "> Lifecycle.wait_for_stop:" in str(told.value)
    assert broker.process.returncode == -signal.SIGKILL
