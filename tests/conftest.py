"""Fixtures that several layers' tests share: a Spark session and an S3 server, started when a test asks.

SPARKLOG_TEST_STORE=s3 puts the log of every test that uses `root` into the S3 server; gs or azure into an
emulator of these (tests/bucket_servers.py).
"""

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import HealthCheck, settings

from sparklog.storage import MemoryStore
from sparklog.storage import local as local_temporary
from sparklog.storage.s3_options import parse_storage_options
from tests.bucket_servers import NAMES, BucketServer, make_server
from tests.hooked_s3 import HookedS3Store
from tests.seaweed import SeaweedServer
from tests.support import levels
from tests.support.leftovers import Leftovers
from tests.support.rights import obeying_permissions
from tests.support.told import Told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# As for everybody who has sparklog installed; a work tree need not be installed.
pytest_plugins = ["sparklog.testing.plugin"]

# Tests start hundreds of Pythons. Without bytecode files each compiles the same modules, and pytest rewrites
# the assertions of 700 more.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# By default an example that takes longer than 200 ms fails, as one does that is begun when a machine is busy.
settings.register_profile("steady", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("steady")

# Tests make thousands of roots, and pytest keeps those of three runs.
local_temporary.RESERVE_BYTES = 64 << 10

# For each Spark that a test starts, in whatever process. They live for a minute, beside others, on few cores;
# what the JVM's second compiler and a collector in many threads are good for comes after they have ended.
# One that lives longer runs hundreds of queries: it has room for their code and classes, as with both.
_SHORT_LIVED = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m -XX:MetaspaceSize=128m"
)
for _variable in ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS"):
    os.environ.setdefault(_variable, _SHORT_LIVED)


_refused_processes: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--level", choices=levels.LEVELS, default="all", help="tests to run (CONTRIBUTING.md)")
    parser.addoption("--durations-file", help="write the 50 slowest tests to this file")


def pytest_configure(config: pytest.Config) -> None:
    memory = levels.memory_directory()
    if config.getoption("level") != "all" and memory is not None:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", memory)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Items are in the order of their files here: plugins shuffle them afterwards.

    For several processes (-n 2 --dist loadgroup): one has all that starts Spark, which is too large to run
    twice at the same time; of the rest, a module's tests stay together, and share its fixtures.
    """
    for item in items:
        levels.add_marks(item)
    level = config.getoption("level")
    left_out = levels.left_out(items, level)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]
    for item in items:
        module = item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group("spark" if item.get_closest_marker("spark") else module))
    if level == "fast":
        levels.refuse_processes(_refused_processes)
    return (yield)


def pytest_collection_finish() -> None:
    """10,000 tests are a million objects: a test that collects garbage need not look at them."""
    gc.freeze()


@pytest.fixture
def report(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Say what a run of a crash test did; `make chaos` shows it at the end."""

    def say(text: str) -> None:
        record_property("chaos", text)
        print(text, flush=True)

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if path := terminalreporter.config.getoption("durations_file"):
        _write_durations(terminalreporter, Path(path))
    if "SPARKLOG_CHAOS_KILLS" not in os.environ:
        return
    terminalreporter.section("chaos")
    for one in [*terminalreporter.stats.get("passed", []), *terminalreporter.stats.get("failed", [])]:
        texts = [str(text) for name, text in one.user_properties if name == "chaos"]
        if texts:
            terminalreporter.write_line(f"{one.nodeid}: {one.outcome}, {one.duration:.0f} s")
        for text in texts:
            terminalreporter.write_line("    " + text.replace("\n", "\n    "))


def _write_durations(terminalreporter: pytest.TerminalReporter, path: Path) -> None:
    """The 50 slowest tests, their set-up and end included."""
    seconds: dict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid] += report.duration
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:50]
    path.write_text("".join(f"{spent:8.2f} s  {test}\n" for test, spent in slowest))


@pytest.fixture(autouse=True)
def _leaves_nothing_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test leaves behind is the bad luck of others; SPARKLOG_LEFTOVERS=1 looks for threads, too."""
    before = Leftovers()
    yield
    refused, _refused_processes[:] = _refused_processes[:], []
    assert refused == []
    assert before.loggers() == []
    if "SPARKLOG_LEFTOVERS" in os.environ and "spark" not in request.fixturenames:  # its session goes on
        assert before.threads() == []


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Told:
    """told("sparklog.spark"): what this logger has said, whatever else the process says."""
    return Told(caplog)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, s3_reserved: SeaweedServer) -> "Iterator[SparkSession]":
    """One small local session for the whole run, with sparklog registered."""
    from sparklog.spark.interpreter import worker_python

    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    from pyspark.sql import SparkSession

    import sparklog.spark

    home = tmp_path_factory.mktemp("spark")
    builder = sparklog.spark.configure(SparkSession.builder.appName("sparklog-tests")).master("local[2]")
    settings: dict[str, Any] = {
        "spark.ui.enabled": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.default.parallelism": 2,
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(home / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={home} -Djava.io.tmpdir={home}",
        "spark.sql.python.filterPushdown.enabled": True,
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": True,
    }
    for key, value in settings.items():
        builder = builder.config(key, value)
    # The JVM hands its environment on to its Python workers.
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3_reserved.environment.items():
            patch.setenv(name, value)
        session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    sparklog.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def s3_reserved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeaweedServer]:
    """The S3 server with its ports, not started yet."""
    server = SeaweedServer(tmp_path_factory.mktemp("s3"))
    yield server
    server.stop()


@pytest.fixture
def s3_server(s3_reserved: SeaweedServer, monkeypatch: pytest.MonkeyPatch) -> SeaweedServer:
    """The S3 server, running; AWS's environment variables lead to it."""
    s3_reserved.start()
    for name, value in s3_reserved.environment.items():
        monkeypatch.setenv(name, value)
    return s3_reserved


@pytest.fixture
def s3_root(s3_server: SeaweedServer) -> str:
    """A prefix for a log that does not exist yet, on the S3 server."""
    return s3_server.new_root()


@pytest.fixture(scope="session")
def bucket_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, BucketServer]]:
    """The emulators by name, with their ports, not started yet."""
    servers = {name: make_server(name, tmp_path_factory.mktemp(name)) for name in NAMES}
    yield servers
    for server in servers.values():
        server.stop()


@pytest.fixture
def bucket_server(
    bucket_servers: dict[str, BucketServer], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], BucketServer]:
    """Starts an emulator by its name; the environment's variables lead to it."""

    def start(name: str) -> BucketServer:
        server = bucket_servers[name]
        server.start()
        for variable, value in server.environment.items():
            monkeypatch.setenv(variable, value)
        return server

    return start


@pytest.fixture
def root(tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A place for a log that does not exist yet: a directory, unless SPARKLOG_TEST_STORE says otherwise."""
    if os.environ.get("SPARKLOG_TEST_STORE") == "s3":
        return str(request.getfixturevalue("s3_root"))
    if (name := os.environ.get("SPARKLOG_TEST_STORE")) in NAMES:
        return str(request.getfixturevalue("bucket_server")(name).new_root())
    return str(tmp_path / "log")


@pytest.fixture
def directory(root: str) -> Path:
    """The root, for tests that look into its files."""
    if "://" in root:
        pytest.skip("looks into the files of a directory")
    return Path(root)


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[Path]:
    """A directory, in a process that permissions of files stop."""
    with obeying_permissions():
        yield tmp_path


@pytest.fixture
def memory_or_s3(request: pytest.FixtureRequest) -> MemoryStore:
    """A store in memory; with SPARKLOG_TEST_STORE=s3 one on the S3 server that has the same hook."""
    if os.environ.get("SPARKLOG_TEST_STORE") != "s3":
        return MemoryStore("tests")
    url = str(request.getfixturevalue("s3_root"))
    return cast("MemoryStore", HookedS3Store(url, parse_storage_options({}, os.environ)))
