"""The command line on an s3:// root: the environment says how to reach it."""

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

import sparklog
from sparklog.cli.main import cli
from sparklog.client.root_checks import Status, check_lifecycle
from sparklog.storage import open_store
from tests.seaweed import BUCKET, SECRET, SeaweedServer
from tests.support.cluster_root import ClusterRoot


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=stdin, prog_name="sparklog")


def test_a_root_in_s3_from_end_to_end(s3_root: str) -> None:
    def ok(*arguments: str, stdin: str | None = None) -> str:
        result = run("--root", s3_root, *arguments, stdin=stdin)
        assert result.exit_code == 0, result.output
        return result.stdout

    ok("topics", "create", "--topic", "t", "--partitions", "2")
    ok("produce", "--topic", "t", stdin="one\ntwo\n")
    assert sorted(ok("consume", "--topic", "t", "-o", "beginning", "-e").split()) == ["one", "two"]
    assert [topic["topic"] for topic in json.loads(ok("topics", "list", "--output", "json"))] == ["t"]
    assert "put-if-absent" in ok("doctor", "--deep")


def test_the_doctor_looks_for_rules_that_remove_objects(s3_root: str, s3_server: SeaweedServer) -> None:
    sparklog.open(s3_root)
    client = s3_server.client()

    def finding() -> tuple[str, str]:
        found = json.loads(run("--root", s3_root, "doctor", "--output", "json").stdout)
        (one,) = [one for one in found if one["check"] == "lifecycle rules"]
        return one["status"], one["detail"]

    assert finding() == ("ok", "none takes objects of the root away")
    prefix = s3_root.removeprefix(f"s3://{BUCKET}/")
    rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": prefix}, "Expiration": {"Days": 30}}
    client.put_bucket_lifecycle_configuration(Bucket=BUCKET, LifecycleConfiguration={"Rules": [rule]})
    assert finding() == ("fail", "rule 'tidy' removes objects")
    client.delete_bucket_lifecycle(Bucket=BUCKET)


def test_the_doctor_says_when_it_may_not_look_for_rules(s3_root: str, s3_server: SeaweedServer) -> None:
    store = open_store(s3_root, storage_options={**s3_server.storage_options, "secret": "a wrong one"})
    (found,) = check_lifecycle(store)
    assert found.status is Status.WARN
    assert "not known" in found.detail
    assert "no lifecycle rule" in found.fix


def test_wrong_credentials_are_told_in_one_message(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    result = run("--root", s3_root, "topics", "list")
    assert result.exit_code == 1
    assert "SPARKLOG_STORAGE_REFUSED" in result.stderr
    assert "Check the credentials" in result.stderr
    for hidden in ("a-wrong-secret", SECRET, "Traceback"):
        assert hidden not in result.output


def test_who_serves_a_bucket_and_who_did(s3_root: str) -> None:
    log = sparklog.open(s3_root)
    cluster = ClusterRoot(log)
    log.create_topic("t")
    cluster.assign("t", (1, 2, 3))
    led = cluster.lead("t", 2)
    cluster.fence(2)
    log.store.put_hint("__cluster_metadata/heartbeats/1", b"1 1\n")

    def ask(*words: str) -> Any:
        result = run("--root", s3_root, *words, "--output", "json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    leaders = [ask("partitions", "list", *words)[0]["leader"] for words in ((), ("--at", str(led)))]
    assert leaders == [None, 2]
    first, second, _ = ask("brokers", "list")
    assert first["seen_ms"] < 600_000
    assert (second["state"], second["seen_ms"]) == ("fenced", None)
    assert [one["commit"] for one in ask("metadata", "log", "--from", str(led))] == [led, led + 1]
