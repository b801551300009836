"""A real S3 server for the tests: SeaweedFS, one process a run, on the loopback address alone.

Invariants: ports are reserved when the run starts, so that what is started earlier (Spark's JVM) can know the
    endpoint; the server itself starts with the first test that needs it, and ends with the run. Should the
    run be killed, the kernel ends the server (setpriv --pdeathsig).
    Its ports are none that the kernel gives away (tests/support/ports.py): it takes seconds until it listens.
Not here: faults on the way to it (tests/storage/s3_proxy.py).
"""

import json
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from sparklog.clock import SystemClock
from tests.support.ports import reserved_port

BUCKET = "sparklog-tests"
KEY, SECRET = "tests-key", "tests-secret-0123456789"
READER_KEY, READER_SECRET = "reader-key", "reader-secret-0123456789"
# What `sparklog grants` gives to a principal that may read and write one isolated topic of a root, `orders`.
JOB_KEY, JOB_SECRET = "job-key", "job-secret-0123456789"
JOB_ROOT = f"s3://{BUCKET}/granted/log"
JOB_ACTIONS = [
    f"List:{BUCKET}/granted/log/__cluster_metadata/*",
    f"Read:{BUCKET}/granted/log/meta.properties*",
    f"Read:{BUCKET}/granted/log/__cluster_metadata/*",
    f"Read:{BUCKET}/granted/log/isolated/orders/*",
    f"Write:{BUCKET}/granted/log/isolated/orders/*",
]
# One that may read each of these roots, and write all but one isolated topic of it, `secret`.
MOST_KEY, MOST_SECRET = "most-key", "most-secret-0123456789"
MOST_ROOTS = [f"s3://{BUCKET}/closed/{name}" for name in ("publishing", "maintenance")]
_MOST_WRITTEN = ("meta", "__cluster_metadata/", "segments/", "shared-", "isolated/orders/", ".tmp/")
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)
_START_SECONDS = 60


class SeaweedServer:
    """A SeaweedFS with its S3 gateway and one bucket. `start` it before use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reserved = {name: reserved_port() for name in _PORTS}
        self._ports = {name: int(sock.getsockname()[1]) for name, sock in self._reserved.items()}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._ports['s3.port']}"

    @property
    def storage_options(self) -> dict[str, Any]:
        """For sparklog.open."""
        return {"key": KEY, "secret": SECRET, "endpoint_url": self.endpoint_url}

    @property
    def environment(self) -> dict[str, str]:
        """The same as variables; AWS's own files are kept out."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.endpoint_url,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
            "SPARKLOG_CACHE_DIR": str(self._directory / "cache"),
        }

    @property
    def pid(self) -> int:
        """The server's process."""
        assert self._process is not None, "it has not been started"
        return self._process.pid

    def new_root(self) -> str:
        """A prefix that nobody has used."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"

    def start(self) -> None:
        """Start it unless it runs, and wait until it stores objects."""
        if self._process is not None:
            assert self._process.poll() is None, self._log()
            return
        for sock in self._reserved.values():
            sock.close()
        self._spawn()
        self._wait_for("create_bucket")
        self._wait_for("put_object", Key="ready", Body=b"")

    def restart(self, *, kill: bool = True) -> None:
        """Kill it (or end it), and start it again on the same files and ports."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self._process.wait()
        self._spawn()
        self._wait_for("put_object", Key="ready", Body=b"")

    def stop(self) -> None:
        """End it."""
        for sock in self._reserved.values():
            sock.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, **config: Any) -> Any:
        """A plain botocore client with all rights."""
        return botocore.session.Session().create_client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(
                retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}, read_timeout=10, **config
            ),
        )

    def _spawn(self) -> None:
        directory = self._directory
        (directory / "data").mkdir(parents=True, exist_ok=True)
        config = directory / "s3.json"
        config.write_text(json.dumps({"identities": _IDENTITIES}))
        die_with_us = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with (directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *die_with_us,
                    str(Path(sys.executable).parent / "weed"),
                    "server",
                    *("-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-dir", str(directory / "data")),
                    *(f"-{name}={port}" for name, port in self._ports.items()),
                    *("-filer", f"-filer.localSocket={directory / 'filer.sock'}"),
                    *("-s3", f"-s3.config={config}", f"-s3.localSocket={directory / 's3.sock'}"),
                    *("-s3.port.iceberg=0", "-s3.port.lance=0", "-s3.iam=false", "-iam=false"),
                    *("-s3.autoCreateBucket=false", "-master.telemetry=false", "-volume.preStopSeconds=0"),
                    # After a restart it waits for its own election, by default for ten seconds and more.
                    *("-master.electionTimeout=1s", "-master.heartbeatInterval=100ms"),
                    *("-volume.max=100", "-master.volumeSizeLimitMB=256", "-volume.minFreeSpace=1"),
                ],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def _wait_for(self, operation: str, **arguments: Any) -> None:
        request = getattr(self.client(), operation)
        clock = SystemClock()
        deadline_ms = clock.monotonic_ms() + _START_SECONDS * 1000
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self._log()
            try:
                request(Bucket=BUCKET, **arguments)
            except (BotoCoreError, ClientError) as error:
                problem = str(error)
            else:
                return
            if "BucketAlready" in problem:
                return
            assert clock.monotonic_ms() < deadline_ms, f"{problem}\n{self._log()}"
            clock.sleep_ms(50)

    def _log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-4000:]


_IDENTITIES = [
    {
        "name": "tests",
        "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    },
    {
        "name": "reader",
        "credentials": [{"accessKey": READER_KEY, "secretKey": READER_SECRET}],
        "actions": ["Read", "List"],
    },
    {
        "name": "most",
        "credentials": [{"accessKey": MOST_KEY, "secretKey": MOST_SECRET}],
        "actions": [
            *(f"{action}:{BUCKET}" for action in ("List", "Read")),
            *(f"Write:{root[5:]}/{written}*" for root in MOST_ROOTS for written in _MOST_WRITTEN),
        ],
    },
    {
        "name": "job",
        "credentials": [{"accessKey": JOB_KEY, "secretKey": JOB_SECRET}],
        "actions": JOB_ACTIONS,
    },
]
