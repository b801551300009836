"""What deploy/ says is what the broker knows: settings, ports, paths of probes, the user, the time to stop.

The linters of these files are in `make check-deploy`.
"""

import configparser
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.sources import load_config

PROJECT = Path(__file__).resolve().parents[1]
DEPLOY = PROJECT / "deploy"
ENDPOINT = (PROJECT / "sparklog_server" / "http" / "endpoint.py").read_text()
PATHS = set(re.findall(r'Route\("([^"]+)"', ENDPOINT))
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes" / "sparklog.yaml").read_text()))
COMPOSE = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]["broker"]


def manifest(kind: str, name: str = "sparklog") -> dict[str, Any]:
    (found,) = [one for one in MANIFESTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return dict(found)


POD = manifest("StatefulSet")["spec"]["template"]["spec"]
CONTAINER = POD["containers"][0]
# As Kubernetes gives them to the third pod.
SETTINGS_OF_A_POD = {
    entry["name"]: entry.get("value", "2")
    .replace("$(POD_NAME)", "sparklog-2")
    .replace("$(POD_NAMESPACE)", "default")
    for entry in CONTAINER["env"]
    if entry["name"].startswith("SPARKLOG_SERVER_")
}


def of_the_image(environment: dict[str, str]) -> ServerConfig:
    file = DEPLOY / "docker" / "server.properties"
    return load_config(file=file, environment=environment, flags={})


def of_a_pod(tmp_path: Path) -> ServerConfig:
    file = tmp_path / "server.properties"
    file.write_text(manifest("ConfigMap")["data"][file.name])
    return load_config(file=file, environment=SETTINGS_OF_A_POD, flags={})


def instruction(name: str) -> str:
    """What the Dockerfile's last stage gives to an instruction."""
    return str(re.findall(rf"^{name} (.*)$", DOCKERFILE, re.MULTILINE)[-1])


def seconds(text: str) -> int:
    return int(text.removesuffix("s"))


def test_the_image_listens_where_it_says(tmp_path: Path) -> None:
    exposed = set(instruction("EXPOSE").split())
    config = of_the_image({})
    assert exposed == {
        config.network.listeners.rpartition(":")[2],
        config.http.http_listener.rpartition(":")[2],
    }
    assert f"127.0.0.1{config.http.http_listener}/health" in DOCKERFILE
    assert config.broker.log_dirs.startswith(instruction("VOLUME").strip('[]"'))
    assert "/health" in PATHS


def test_what_the_image_copies_is_let_through() -> None:
    lines = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    let_through = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "deploy/docker/server.properties" in let_through
    assert all((PROJECT / name).exists() for name in let_through)
    needed = {"setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "conf", "constraints.txt"}
    assert needed <= let_through


def test_compose_gives_settings_that_are_known() -> None:
    config = of_the_image(COMPOSE["environment"])
    inside, outside = config.network.listeners.split(","), config.network.advertised_listeners.split(",")
    assert [name.partition(":")[0] for name in inside] == [name.partition(":")[0] for name in outside]
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["ports"]), "nothing asks for a password"
    assert seconds(COMPOSE["stop_grace_period"]) * 1000 > config.broker.shutdown_timeout_ms


def test_pods_get_settings_that_are_known(tmp_path: Path) -> None:
    config = of_a_pod(tmp_path)
    assert config.broker.node_id == 2
    ports = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
    assert ports == {
        "kafka": int(config.network.listeners.rpartition(":")[2]),
        "http": int(config.http.http_listener.rpartition(":")[2]),
    }
    assert POD["terminationGracePeriodSeconds"] * 1000 > 2 * config.broker.shutdown_timeout_ms


def test_pods_are_found_by_the_names_they_advertise(tmp_path: Path) -> None:
    service = manifest("StatefulSet")["spec"]["serviceName"]
    assert f"//sparklog-2.{service}.default.svc:" in of_a_pod(tmp_path).network.advertised_listeners
    headless = manifest("Service", service)["spec"]
    assert (headless["clusterIP"], headless["publishNotReadyAddresses"]) == ("None", True)
    labels = manifest("StatefulSet")["spec"]["template"]["metadata"]["labels"]
    for kind, name in (("Service", service), ("Service", "sparklog")):
        assert manifest(kind, name)["spec"]["selector"].items() <= labels.items()


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")],
)
def test_probes_ask_what_the_broker_answers(probe: str, path: str) -> None:
    assert CONTAINER[probe]["httpGet"] == {"path": path, "port": "http"}
    assert path in PATHS


def test_containers_may_do_nothing_that_a_broker_need_not() -> None:
    assert (POD["securityContext"]["runAsUser"], POD["securityContext"]["runAsGroup"]) == (10001, 10001)
    assert instruction("USER") == "10001:10001"
    assert CONTAINER["securityContext"]["readOnlyRootFilesystem"] is True
    assert CONTAINER["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (COMPOSE["read_only"], COMPOSE["cap_drop"]) == (True, ["ALL"])
    writable = {mount["mountPath"] for mount in CONTAINER["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/tmp", "/data"} == {volume.partition(":")[2] for volume in COMPOSE["volumes"]}


def test_the_service_waits_as_long_as_a_broker_hands_over() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DEPLOY / "systemd" / "sparklog-server.service")
    service = unit["Service"]
    assert int(service["TimeoutStopSec"]) * 1000 > ServerConfig.parse({}).broker.shutdown_timeout_ms
    assert service["RestartPreventExitStatus"] == "2"
    assert service["ExecStart"].split()[0].endswith("/sparklog-server")
