"""No value of an option that may hold a secret shows: not in an exception, with all that it came from, nor in
a log, nor in what Spark prints of a plan.
"""

import re
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparklog.client.brokers import find_broker_root
from sparklog.errors import HIDDEN, SparklogError, may_hold_secret, shown
from sparklog.spark.options import parse_sink_options, parse_source_options
from sparklog.spark.session import REDACTION_WITH_KEYS
from sparklog.storage import open_store

SECRET = "hunter2"
JAAS = f"org.apache.kafka.common.security.plain.PlainLoginModule required username='u' password='{SECRET}';"
OPTIONS = [
    ("kafka.sasl.jaas.config", JAAS),
    ("kafka.sasl.jass.config", JAAS),
    ("kafka.ssl.keystore.key", SECRET),
    ("kafka.ssl.key.password", SECRET),
    ("kafka.sasl.oauthbearer.client.credentials.client.secret", SECRET),
    ("kafka.security.protocol", JAAS),
    ("kafka.config.providers.vault.param.token", SECRET),
    ("maxOffsetsPerTrigger", JAAS),
    ("failOnDataLoss", f"https://me:{SECRET}@host"),
    ("s3.secret", SECRET),
    ("s3.secert", SECRET),
    ("s3.endpoint_url", f"https://me:{SECRET}@host"),
    ("fs.s3a.secret.key", SECRET),
    ("fs.s3a.aws.credentials.provider", SECRET),
    ("batch.size", f"password={SECRET}"),
    ("kafka.bootstrap.servers", f"SASL_SSL://me:{SECRET}@host"),
    ("allow_unsafe_filesystem", f"token={SECRET}"),
]


@pytest.mark.parametrize(("name", "value"), OPTIONS, ids=[name for name, _ in OPTIONS])
@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_refused_or_ignored_option_does_not_show_its_value(
    name: str, value: str, side: str, caplog: pytest.LogCaptureFixture
) -> None:
    given: Mapping[str, str] = {"path": "s3://bucket/log", name: value}
    said = ""
    try:
        if side == "source":
            parse_source_options({**given, "subscribe": "t"}, streaming=True)
        else:
            parse_sink_options(given, streaming=True)
    except SparklogError as error:
        said = "".join(traceback.format_exception(error))
    assert SECRET not in said + caplog.text


@pytest.mark.parametrize("url", [f"gs://me:{SECRET}@bucket/x", f"file://me:{SECRET}@host/x"])
def test_a_root_does_not_show_a_password_in_its_url(url: str) -> None:
    with pytest.raises(SparklogError) as caught:
        open_store(url)
    assert SECRET not in str(caught.value)
    assert f"//{HIDDEN}@" in str(caught.value)


@pytest.mark.parametrize("servers", [f"SSL://me:{SECRET}@", f"me:{SECRET}@127.0.0.1:1", f"me:{SECRET}@[:1"])
def test_bootstrap_servers_do_not_show_a_password(servers: str) -> None:
    with pytest.raises(SparklogError) as caught:
        find_broker_root(servers, timeout_ms=1000)
    assert SECRET not in str(caught.value)


def test_what_is_no_secret_is_shown_and_bounded() -> None:
    assert shown("startingOffsets", '{"tokens": {"0": 1}}') == repr('{"tokens": {"0": 1}}')
    assert shown("kafka.acks", "2") == "'2'"
    assert len(shown("assign", "x" * 10_000)) < 400
    assert not may_hold_secret("subscribe")


def test_sparks_plans_hide_what_may_hold_a_secret() -> None:
    """Its defaults hide what is called secret, password, token or access key; ours adds the rest."""
    by_default = r"(?i)secret|password|token|access[.]?key"
    for name in ("key", "s3.key", "kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "s3.endpoint_url"):
        assert re.search(REDACTION_WITH_KEYS, name), name
    for name in (
        *("account_key", "azure.account_key", "fs.azure.account.key.a.dfs.core.windows.net"),
        *("azure.connection_string", "azure.sas_token", "fs.azure.sas.fixed.token", "fsspec.pin"),
        "fs.gs.auth.service.account.json.keyfile",
    ):
        assert re.search(REDACTION_WITH_KEYS, name), name
    for name in ("azure.client_secret", "hdfs.token", "fs.azure.account.oauth2.client.secret", "gs.token"):
        assert re.search(by_default, name), name
    for name in ("s3.secret", "s3.token", "fs.s3a.access.key", "fs.s3a.secret.key"):
        assert re.search(by_default, name), name


EVENT_LOG = """
import sys
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
import sparklog

root, events, jaas, secret = sys.argv[1:]
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
builder = builder.config("spark.eventLog.enabled", "true").config("spark.eventLog.compress", "false")
builder = sparklog.spark.configure(builder.config("spark.eventLog.dir", f"file://{events}"))
spark = builder.getOrCreate()
sparklog.register(spark)
rows = spark.range(5).selectExpr("CAST(id AS STRING) value")
rows.write.format("sparklog").mode("append").option("topic", "t").save(root)
for name, value in (("kafka.sasl.jaas.config", jaas), ("s3.secret", secret), ("s3.key", secret)):
    writer = rows.write.format("sparklog").mode("append").option("topic", "t")
    view = f"CREATE TEMPORARY VIEW {name.replace('.', '_')} USING sparklog OPTIONS "
    try:
        writer.option(name, value).save(root)
    except PySparkException as error:
        print("refused", error)
    try:
        found = spark.read.format("sparklog").option("subscribe", "t").option(name, value).load(root)
        found.explain(True)
        found.collect()
    except PySparkException as error:
        print("refused", error)
    try:
        spark.sql(view + f"(path '{root}', subscribe 't', `{name}` \\"{value}\\")")
    except PySparkException as error:
        print("refused", error)
spark.read.format("sparklog").option("subscribe", "t").load(root).collect()
spark.stop()
"""


@pytest.mark.spark
def test_neither_an_event_log_nor_a_plan_shows_a_secret(root: str, tmp_path: Path) -> None:
    """A session of its own: the event log is set up when Spark starts."""
    events = tmp_path / "events"
    events.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", EVENT_LOG, root, str(events), JAAS, SECRET],
        capture_output=True,
        text=True,
        check=True,
    )
    logged = "".join(file.read_text() for file in events.rglob("events_*"))
    assert "SQLExecutionStart" in logged
    for hidden in ("kafka.sasl.jaas.config", "s3.secret", "s3.key"):
        assert f"{hidden} -> *********(redacted)" in logged, "this logs options at all"
    assert "== Parsed Logical Plan ==" in done.stdout
    assert SECRET not in logged + done.stdout + done.stderr


@pytest.mark.spark
def test_an_explained_stream_shows_no_secret(spark: SparkSession, root: str) -> None:
    secrets = {"kafka.sasl.jaas.config": JAAS, "s3.key": SECRET, "kafka.ssl.keystore.key": SECRET}
    rows = spark.readStream.format("sparklog").options(subscribe="t", **secrets).load(root)
    plan = rows._jdf.queryExecution().toString()
    assert "subscribe" in plan, "this shows options at all"
    assert SECRET not in plan
