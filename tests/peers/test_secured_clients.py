"""franz-go and kafkajs over TLS, without and with each mechanism of SASL."""

import itertools
import json
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

import sparklog
from benchmarks.peers.fetching import cache
from sparklog.clock import SystemClock
from tests.peers.transacting import franz_command
from tests.support.broker_process import BrokerProcess
from tests.support.certificates import Authority
from tests.support.ports import lasting_port
from tests.support.sasl_client import USERS, add_users

KAFKAJS = Path(__file__).with_name("kafkajs")
KEY = rsa.generate_private_key(65537, 2048)
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
_names = itertools.count(1)


def kafkajs_command() -> list[str]:
    """A program with kafkajs, which npm fetches."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here")
    folder = cache() / "kafkajs"
    shutil.copytree(KAFKAJS, folder, dirs_exist_ok=True)
    words = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        pytest.skip(f"kafkajs could not be fetched: {done.stderr[-300:]}")
    return ["node", str(folder / "securing.js")]


@pytest.fixture(scope="module", params=["franz-go", "kafkajs"])
def client(request: pytest.FixtureRequest) -> list[str]:
    return franz_command("securing") if request.param == "franz-go" else kafkajs_command()


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def addresses(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Of the broker's listeners, by protocol."""
    folder = tmp_path_factory.mktemp("broker")
    keys = folder / "jwks.json"
    key = jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key(), as_dict=True) | {"kid": "one", "use": "sig"}
    keys.write_text(json.dumps({"keys": [key]}))
    with sparklog.open(str(folder / "log"), create=True) as log:
        add_users(log, USERS)
    found = {protocol: f"127.0.0.1:{lasting_port()}" for protocol in ("SSL", "SASL_SSL")}
    settings = {
        "ssl.keystore.location": authority.certificate("server"),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "org.apache.kafka.sasl.oauthbearer.allowed.urls": keys.as_uri(),
    }
    listeners = ",".join(f"{protocol}://{address}" for protocol, address in found.items())
    broker = BrokerProcess(folder / "log", settings, "--listeners", listeners)
    try:
        yield found
        assert "Traceback" not in broker.errors()
    finally:
        broker.close()


@pytest.fixture
def run(client: list[str], addresses: dict[str, str], authority: Authority) -> Callable[[str, str], str]:
    """run("PLAIN", "secret") -> what the client printed."""

    def run(mechanism: str, secret: str) -> str:
        name = f"t{next(_names)}"
        listener = addresses["SSL" if mechanism == "SSL" else "SASL_SSL"]
        words = [*client, listener, authority.file, mechanism, "alice", secret, name, name]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout.strip() or done.stderr

    return run


@pytest.mark.parametrize("mechanism", ["SSL", *MECHANISMS])
def test_records_come_back(run: Callable[[str, str], str], mechanism: str) -> None:
    assert run(mechanism, token() if mechanism == "OAUTHBEARER" else USERS["alice"]) == "read 100"


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_wrong_secret_is_refused(run: Callable[[str, str], str], mechanism: str) -> None:
    text = run(mechanism, token("mallory") if mechanism == "OAUTHBEARER" else "wrong")
    assert text.startswith("error")
    # Neither client understands why a token is refused, which the server says as Kafka does.
    assert mechanism == "OAUTHBEARER" or "uthentication" in text or "SASL" in text


def token(kid: str = "one") -> str:
    claims = {"sub": "alice", "exp": SystemClock().now_ms() // 1000 + 3600}
    return jwt.encode(claims, KEY, algorithm="RS256", headers={"kid": kid})
