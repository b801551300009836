"""Settings of the broker: sources, precedence, refusals, the generated example."""

import dataclasses
from pathlib import Path

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.log.setting import declared_settings
from sparklog_server.config import ServerConfig, render_server_properties
from sparklog_server.kafka_only import why_kafka_only
from sparklog_server.settings_sources import load_config

PROPERTIES = Path(__file__).parents[2] / "conf" / "server.properties"


def load(
    tmp_path: Path, text: str = "", environment: dict[str, str] | None = None, **flags: str
) -> ServerConfig:
    file = tmp_path / "server.properties"
    file.write_text(text)
    return load_config(
        file=file,
        environment=environment or {},
        flags={key.replace("_", "."): value for key, value in flags.items()},
    )


def test_flags_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    text = "num.partitions = 2\nnode.id=2\nqueued.max.requests: 2\n# no\nlog.dirs=/data\\ with\\u0020space\n"
    environment = {"SPARKLOG_SERVER_NUM_PARTITIONS": "3", "SPARKLOG_SERVER_NODE_ID": "3", "HOME": "/root"}
    config = load(tmp_path, text, environment, num_partitions="4")
    assert (config.num_partitions, config.node_id, config.queued_max_requests) == (4, 3, 2)
    assert config.log_dirs == "/data with space"
    assert config.num_io_threads == ServerConfig().num_io_threads


def test_every_key_has_a_name_in_the_environment(tmp_path: Path) -> None:
    for key, (name, one) in declared_settings(ServerConfig).items():
        variable = "SPARKLOG_SERVER_" + key.upper().replace(".", "_")
        text = one.format(one.default)
        assert getattr(load(tmp_path, "", {variable: text}), name) == one.default


def test_the_variable_that_names_the_file_is_no_setting(tmp_path: Path) -> None:
    load(tmp_path, "", {"SPARKLOG_SERVER_CONFIG": "/etc/server.properties"})


@pytest.mark.parametrize(
    ("text", "environment", "message"),
    [
        (
            "num.partition=3",
            {},
            r"server\.properties: found broker setting 'num\.partition'.*'num\.partitions'",
        ),
        ("", {"SPARKLOG_SERVER_NUM_PARTITION": "3"}, r"the environment: found .*'num\.partition'"),
        ("zookeeper.connect=h:2181", {}, "means nothing here: there is no ZooKeeper"),
        ("log.retention.hours=168", {}, r"set retention\.ms on the root"),
        ("ssl.keystore.location=/k", {}, "PLAINTEXT only"),
        ("num.partitions=many", {}, "found 'many', expected integer"),
        ("num.partitions=0", {}, "outside the minimum 1"),
        ("broker.id=1\nnode.id=2", {}, "means the same"),
        ("a=1\nb=2", {}, "found 2 settings that cannot be"),
        ("x=\\u12", {}, "readable file"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(
    tmp_path: Path, text: str, environment: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        load(tmp_path, text, environment)


def test_synonyms(tmp_path: Path) -> None:
    config = load(tmp_path, "broker.id=7\nlog.dir=/x")
    assert (config.node_id, config.log_dirs) == (7, "/x")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="No such file"):
        load_config(file=tmp_path / "none", environment={}, flags={})


def test_no_setting_is_declared_and_refused_at_once() -> None:
    assert [key for key in declared_settings(ServerConfig) if why_kafka_only(key) is not None] == []


def test_every_default_parses_to_itself_and_is_documented() -> None:
    for key, (_, one) in declared_settings(ServerConfig).items():
        assert one.parse(one.format(one.default)) == one.default, key
        assert len(one.doc) > 15, key


def test_the_example_file_matches_the_declarations(tmp_path: Path) -> None:
    text = render_server_properties()
    assert PROPERTIES.read_text() == text, "run: make docs"
    settings = [line[1:] for line in text.splitlines() if line.startswith("#") and not line.startswith("# ")]
    assert len(settings) == len(dataclasses.fields(ServerConfig))
    assert load(tmp_path, "\n".join(settings)) == ServerConfig()
