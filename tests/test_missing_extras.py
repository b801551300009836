"""What is said where an extra is not installed: its name, not a traceback."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).resolve().parents[1]


def python_without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code where a package cannot be imported."""
    hidden = f"import sys; sys.modules[{package!r}] = None\n"
    words = [sys.executable, "-c", hidden + code]
    return subprocess.run(words, cwd=PROJECT, capture_output=True, text=True, check=False, timeout=120)


def server(*arguments: str) -> str:
    return f"from sparklog_server.main import main; sys.argv = {['sparklog-server', *arguments]!r}; main()"


@pytest.mark.parametrize("package", ["kio", "javaproperties", "uvicorn"])
def test_server_says_what_to_install(package: str, tmp_path: Path) -> None:
    result = python_without(package, server("--root", str(tmp_path / "root")))
    assert result.returncode == 2
    assert result.stderr == (
        f"Error: [SPARKLOG_SERVER_NOT_INSTALLED] sparklog-server needs the package {package}, which is not "
        "installed. Fix: Install it: pip install 'sparklog[server]'. SQLSTATE: 42704\n"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_servers_help_needs_nothing_and_imports_nothing_heavy(option: str) -> None:
    shown = server(option).replace(
        "main()",
        "\ntry:\n    main()\nfinally:\n    "
        "print({'kio', 'numpy', 'pyarrow', 'asyncio', 'starlette'} & set(sys.modules) - {'kio'})",
    )
    result = python_without("kio", shown)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(("Usage: sparklog-server", "sparklog-server, version"))
    assert result.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    "call",
    [
        "sparklog.register(None)",
        "sparklog.spark.configure(None)",
        "sparklog.StreamingLagListener",
        "sparklog.spark.SparklogDataSource",
    ],
)
def test_spark_is_named_where_it_is_missing(call: str) -> None:
    result = python_without("pyspark", f"import sparklog\n{call}")
    last = result.stderr.strip().splitlines()[-1]
    assert last.endswith(
        "[SPARKLOG_SPARK_NOT_INSTALLED] this needs the package pyspark, which is not installed in "
        f"{sys.executable}. Fix: Install it: pip install 'sparklog[spark]'. SQLSTATE: 42704"
    )
    assert "ModuleNotFoundError" not in result.stderr


def test_help_of_the_package_needs_no_extras() -> None:
    shown = "print(dict(inspect.getmembers(sparklog)).keys())\nprint(pydoc.render_doc(sparklog))"
    result = python_without("pyspark", f"import inspect, pydoc, sparklog\n{shown}")
    assert result.returncode == 0, result.stderr
    assert "'register'" in result.stdout
    assert "StreamingLagListener" not in result.stdout.partition("\n")[0]


@pytest.mark.parametrize(
    ("package", "decoder"),
    [("fastavro", "AvroDecoder('\"string\"')"), ("google.protobuf", "ProtobufDecoder(b'')")],
)
def test_schemas_name_what_is_missing(package: str, decoder: str) -> None:
    result = python_without(package, f"from sparklog.console.message_values import *\n{decoder}")
    assert "[SPARKLOG_SCHEMAS_NOT_INSTALLED] decoding with this schema needs the package" in result.stderr
    assert "Fix: Install it: pip install 'sparklog[schemas]'" in result.stderr


def test_mirror_says_what_to_install(tmp_path: Path) -> None:
    words = ["sparklog", "--root", str(tmp_path / "root"), "mirror", "--from", "h:1"]
    code = f"from sparklog.cli.main import main\nsys.argv = {words!r}\nmain()"
    result = python_without("confluent_kafka", code)
    assert result.returncode == 1
    assert result.stderr == (
        "Error: [SPARKLOG_KAFKA_NOT_INSTALLED] mirror needs the package confluent-kafka, which is not "
        "installed. Fix: Install it: pip install 'sparklog[kafka]'. SQLSTATE: 42704\n"
    )
    assert not list(tmp_path.iterdir())


def test_doctor_lists_the_extras() -> None:
    code = (
        "from sparklog.cli.doctor import check_extras\n"
        "for found in check_extras(): print(found.check, found.status, found.detail)"
    )
    assert python_without("kio", code).stdout.splitlines() == [
        "server ok not installed: pip install 'sparklog[server]', to serve Kafka clients",
        "console ok installed",
        "s3 ok installed",
        "gs ok installed",
        "azure ok installed",
        "hdfs ok installed",
        "fsspec ok installed",
        "kafka ok installed",
    ]
    assert python_without("botocore", code).stdout.splitlines() == [
        "server ok installed",
        "console ok installed",
        "s3 ok not installed: pip install 'sparklog[s3]', for roots in S3",
        "gs ok installed",
        "azure ok installed",
        "hdfs ok installed",
        "fsspec ok installed",
        "kafka ok installed",
    ]


@pytest.mark.parametrize(
    ("package", "root", "extra"),
    [
        ("google.auth", "gs://b/x", "gs"),
        ("urllib3", "gs://b/x", "gs"),
        ("azure.identity", "az://c/x", "azure"),
        ("urllib3", "hdfs://nn/x", "hdfs"),
        ("azure", "abfss://c@acct.dfs.core.windows.net/x", "azure"),
    ],
)
def test_a_stores_extra_is_named(package: str, root: str, extra: str) -> None:
    result = python_without(package, f"import sparklog\nsparklog.open({root!r})")
    last = result.stderr.strip().splitlines()[-1]
    assert "SPARKLOG_STORE_NOT_INSTALLED" in last
    assert last.endswith(f"pip install 'sparklog[{extra}]'. SQLSTATE: 42704")
