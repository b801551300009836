"""Options of the command that need no broker."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from sparklog_server.main import cli, conf_file
from sparklog_server.settings.config import ServerConfig
from sparklog_server.settings.sources import load_config

CONF = Path(__file__).resolve().parents[2] / "conf"


def test_the_printed_file_starts_a_broker_with_its_defaults(tmp_path: Path) -> None:
    printed = CliRunner().invoke(cli, ["--print-config"])
    assert printed.exit_code == 0
    file = tmp_path / "server.properties"
    file.write_text(printed.stdout)
    found = load_config(file=file, environment={}, flags={})
    # The one that the file sets, as Kafka's own does.
    assert found == ServerConfig.parse({"group.initial.rebalance.delay.ms": "0"})


@pytest.mark.parametrize("name", sorted(path.name for path in CONF.iterdir()))
def test_every_file_of_conf_is_printed_as_it_is(name: str) -> None:
    printed = CliRunner().invoke(cli, ["--print-config", name])
    assert (printed.exit_code, printed.stdout) == (0, (CONF / name).read_text())


def test_an_installed_package_has_the_files_inside_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "alerts.yml").write_text("installed")
    monkeypatch.setattr("importlib.resources.files", lambda _package: tmp_path)
    assert conf_file("alerts.yml") == "installed"


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    refused = CliRunner().invoke(cli, ["--print-config", "servers.properties"])
    assert refused.exit_code == 2
    assert "found 'servers.properties', expected one of " in refused.stderr
