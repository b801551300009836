"""Servers of stores, one process a run: fake-gcs-server, Azurite, HDFS (a NameNode and two DataNodes).

`make test-stores` and `make test-hdfs` install them, and set SPARKLOG_STORES; no other target runs a test
that needs one. SPARKLOG_TEST_STORE=gs, azure or hdfs puts the log of every test that uses `root` into one of
them.

Invariants: as tests/seaweed.py: loopback only, started by the first test that needs them, ended with the run.
What they keep and what not: docs/object-stores.md.
"""

import getpass
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

import urllib3
from urllib3.exceptions import HTTPError

from sparklog.clock import SystemClock
from sparklog.storage.azure import AzureClient, parse_azure_options
from sparklog.storage.object_client import Outcome
from sparklog.storage.rest_client import AnswerError, Request
from sparklog.storage.root_rules import parse_azure_url
from tests.support.ports import reserved_port

NAMES = ("gs", "azure", "hdfs")
BUCKET = "sparklog-tests"
ACCOUNT = "devstoreaccount1"  # Azurite's, with its well-known key
ACCOUNT_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_START_SECONDS = 60
_VENV = Path(sys.executable).parent


class BucketServer(ABC):
    """An emulator with one bucket. `start` it before use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reserved = reserved_port()
        self._port = int(self._reserved.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def environment_at(self, endpoint_url: str) -> dict[str, str]:
        """Variables that lead to the server, perhaps through a proxy at another address."""
        return {**self._environment(endpoint_url), "SPARKLOG_CACHE_DIR": str(self._directory / "cache")}

    @property
    def environment(self) -> dict[str, str]:
        return self.environment_at(self.endpoint_url)

    def new_root(self) -> str:
        """A prefix that nobody has used."""
        return f"{self._scheme}://{BUCKET}/{uuid.uuid4().hex}"

    def start(self) -> None:
        """Start it unless it runs, and wait until it has a bucket."""
        if self._process is not None:
            assert self._process.poll() is None, self._log()
            return
        self._reserved.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        die_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*die_with_us, *self._command(self._port)],
                cwd=self._directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + _START_SECONDS * 1000
        while not self._has_created_bucket():
            assert self._process.poll() is None, self._log()
            assert clock.monotonic_ms() < deadline_ms, self._log()
            clock.sleep_ms(50)

    def stop(self) -> None:
        """End it."""
        self._reserved.close()
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-4000:]

    _scheme: str

    @abstractmethod
    def _command(self, port: int) -> list[str]: ...
    @abstractmethod
    def _environment(self, endpoint_url: str) -> dict[str, str]: ...
    @abstractmethod
    def _has_created_bucket(self) -> bool: ...


class GcsServer(BucketServer):
    """fake-gcs-server."""

    _scheme = "gs"

    def _command(self, port: int) -> list[str]:
        return [
            str(_VENV / "fake-gcs-server"),
            *("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)),
            *("-log-level", "warn"),
        ]

    def _environment(self, endpoint_url: str) -> dict[str, str]:
        return {"STORAGE_EMULATOR_HOST": endpoint_url}

    def _has_created_bucket(self) -> bool:
        try:
            answer = urllib3.request(
                "POST",
                f"{self.endpoint_url}/storage/v1/b?project=tests",
                body=json.dumps({"name": BUCKET}),
                headers={"content-type": "application/json"},
                retries=False,
            )
        except HTTPError:
            return False
        return answer.status in {200, 409}


class AzureServer(BucketServer):
    """Azurite."""

    _scheme = "az"

    def _command(self, port: int) -> list[str]:
        return [
            "node",
            str(_VENV.parent / "azurite" / "node_modules" / ".bin" / "azurite-blob"),
            *("--disableTelemetry", "--silent", "--skipApiVersionCheck", "--inMemoryPersistence"),
            *("--blobHost", "127.0.0.1", "--blobPort", str(port)),
        ]

    def _environment(self, endpoint_url: str) -> dict[str, str]:
        parts = {
            "AccountName": ACCOUNT,
            "AccountKey": ACCOUNT_KEY,
            "BlobEndpoint": f"{endpoint_url}/{ACCOUNT}",
        }
        text = ";".join(f"{name}={value}" for name, value in parts.items())
        return {"AZURE_STORAGE_CONNECTION_STRING": text}

    def _has_created_bucket(self) -> bool:
        options = parse_azure_options({}, self.environment)
        client = AzureClient(parse_azure_url(self.new_root()), options, SystemClock())
        request = Request(
            name="create", method="PUT", path=f"/{BUCKET}", query={"restype": "container"}, body=b""
        )
        try:
            client.send(request)
        except AnswerError as error:
            return client.outcome_of(error) is Outcome.CONFLICT
        except HTTPError:
            return False
        return True


class HdfsServer(BucketServer):
    """Hadoop's MiniDFSCluster. Its DataNodes have addresses of their own, which the NameNode names."""

    _scheme = "webhdfs"

    def new_root(self) -> str:
        return f"webhdfs://127.0.0.1:{self._port}/{BUCKET}/{uuid.uuid4().hex}"

    def _command(self, port: int) -> list[str]:
        main = Path(__file__).parent / "storage" / "MiniHdfs.java"
        jars = str(_VENV.parent / "hadoop" / "*")
        return ["java", "-Xmx512m", "-cp", jars, str(main), str(self._directory / "hdfs"), str(port)]

    def _environment(self, endpoint_url: str) -> dict[str, str]:
        return {"HADOOP_USER_NAME": getpass.getuser(), "FSSPEC_WEBHDFS_ENDPOINT_URL": endpoint_url}

    def _has_created_bucket(self) -> bool:
        query = f"op=CREATE&overwrite=true&user.name={getpass.getuser()}"
        target = f"{self.endpoint_url}/webhdfs/v1/{BUCKET}/ready?{query}"
        try:
            first = urllib3.request("PUT", target, redirect=False, retries=False)
            if first.status != 307:
                return False
            return urllib3.request("PUT", first.headers["location"], body=b"", retries=False).status == 201
        except HTTPError:
            return False


def are_built() -> bool:
    """True if this run may start them."""
    return "SPARKLOG_STORES" in os.environ or os.environ.get("SPARKLOG_TEST_STORE") in NAMES


def make_server(name: str, directory: Path) -> BucketServer:
    servers: dict[str, type[BucketServer]] = {"gs": GcsServer, "azure": AzureServer, "hdfs": HdfsServer}
    return servers[name](directory)
