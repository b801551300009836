"""Our own clients over TLS and SASL: the search for a root, --command-config."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from sparklog.cli.main import cli
from sparklog.client.brokers import ControllerClient, Election, find_broker_root
from sparklog.client.group_coordinators import GroupCoordinators
from sparklog.client.security import ClientSecurity, client_security
from sparklog.errors import InvalidRequestError, RetriableError
from sparklog.spark import roots
from sparklog.spark.options import parse_source_options
from tests.support.certificates import Authority
from tests.support.running_broker import RunningBroker

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
Start = Callable[..., RunningBroker]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def broker(start_broker: Start, root_with_users: str, authority: Authority) -> RunningBroker:
    return start_broker(
        {
            "listeners": "SASL_SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.certificate("server"),
            "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512,PLAIN",
            "connection.failed.authentication.delay.ms": "0",
        },
        root=root_with_users,
    )


def settings(authority: Authority, **changes: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": f'{SCRAM} required username="alice" password="secret";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": authority.file,
        **{key.replace("_", "."): value for key, value in changes.items()},
    }


def security(authority: Authority, **changes: str) -> ClientSecurity:
    return client_security(settings(authority, **changes), "test")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_clients_authenticate(broker: RunningBroker, authority: Authority, mechanism: str) -> None:
    secure = security(authority, sasl_mechanism=mechanism)
    found = find_broker_root(broker.bootstrap, security=secure)
    assert found.root == broker.broker.root.log.url
    root = broker.broker.root
    controller = ControllerClient(
        root.image, broker.broker.clock, bootstrap_servers=broker.bootstrap, security=secure
    )
    assert controller.elect(Election.PREFERRED, None).whole.error_code == 0
    groups = GroupCoordinators(root.image.cluster_id, broker.broker.clock, broker.bootstrap, security=secure)
    assert groups.list_groups() == {}


def test_wrong_password_is_one_clear_error(broker: RunningBroker, authority: Authority) -> None:
    wrong = f'{SCRAM} required username="alice" password="not-it";'
    with pytest.raises(InvalidRequestError, match=r"NOT_AUTHENTICATED.*invalid credentials") as refused:
        find_broker_root(broker.bootstrap, security=security(authority, sasl_jaas_config=wrong))
    assert "not-it" not in str(refused.value)
    assert broker.broker.metrics.connections_refused == {"authentication": 1}


def test_mechanism_that_is_not_enabled(
    start_broker: Start, root_with_users: str, authority: Authority
) -> None:
    broker = start_broker({"listeners": "SASL_PLAINTEXT://127.0.0.1:0"}, root=root_with_users)
    plain = security(authority, security_protocol="SASL_PLAINTEXT")
    assert find_broker_root(broker.bootstrap, security=plain)
    with pytest.raises(RetriableError, match="does it expect TLS or SASL"):
        find_broker_root(broker.bootstrap)


def test_broker_of_another_authority_or_host_is_refused(
    broker: RunningBroker, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    with pytest.raises(RetriableError, match="CERTIFICATE_VERIFY_FAILED"):
        find_broker_root(broker.bootstrap, security=security(other))
    Path(broker.configs["ssl.keystore.location"]).write_text(
        Path(authority.certificate("elsewhere", "elsewhere.example")).read_text()
    )
    broker.call(broker.broker.network.reload_certificates())
    with pytest.raises(RetriableError, match=r"not valid for '127.0.0.1'"):
        find_broker_root(broker.bootstrap, security=security(authority))
    unchecked = security(authority, ssl_endpoint_identification_algorithm="")
    assert find_broker_root(broker.bootstrap, security=unchecked)


def test_client_certificate(start_broker: Start, authority: Authority) -> None:
    broker = start_broker(
        {
            "listeners": "SSL://127.0.0.1:0",
            "ssl.keystore.location": authority.certificate("server"),
            "ssl.truststore.location": authority.file,
            "ssl.client.auth": "required",
        }
    )
    own = {
        "security_protocol": "SSL",
        "ssl_keystore_type": "PEM",
        "ssl_keystore_location": authority.certificate("alice"),
    }
    assert find_broker_root(broker.bootstrap, security=security(authority, **own))
    with pytest.raises(RetriableError):
        find_broker_root(broker.bootstrap, security=security(authority, security_protocol="SSL"))


# --- command line ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_command_config(broker: RunningBroker, authority: Authority, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    (tmp_path / "password").write_text("secret\n")
    lines = settings(authority)
    lines["sasl.jaas.config"] = f'{SCRAM} required username="alice" password="${{file:{tmp_path}/password}}";'
    file.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
    words = ["--bootstrap-server", broker.bootstrap, "--command-config", str(file)]
    for command in (
        ["topics", "list"],
        ["groups", "list"],
        ["users", "list"],
        ["partitions", "elect", "--preferred", "--all"],
    ):
        done = CliRunner().invoke(cli, [*command, *words], prog_name="sparklog")
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["topics", "list", *words[:2]], prog_name="sparklog")
    assert "BROKER_UNREACHABLE" in done.stderr


# --- Spark -------------------------------------------------------------------------------------------


def test_spark_options(broker: RunningBroker, authority: Authority) -> None:
    roots.reset()
    options = {f"kafka.{key}": value for key, value in settings(authority).items()}
    parsed = parse_source_options(
        {**options, "kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"}, streaming=False
    )
    assert parsed.root == broker.broker.root.log.url
    with pytest.raises(InvalidRequestError, match=r"UNSUPPORTED_KAFKA_OPTION.*with path") as refused:
        parse_source_options({**options, "path": broker.root, "subscribe": "t"}, streaming=False)
    assert "secret" not in str(refused.value)
