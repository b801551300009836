"""The command line on an s3:// root: the environment says how to reach it."""

import json

import pytest
from click.testing import CliRunner, Result

from sparklog.cli.main import cli
from tests.seaweed import SECRET


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


def test_wrong_credentials_are_told_in_one_message(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-wrong-secret")
    result = run("--root", s3_root, "topics", "list")
    assert result.exit_code == 1
    assert "SPARKLOG_STORAGE_REFUSED" in result.stderr
    assert "Check the credentials" in result.stderr
    for hidden in ("a-wrong-secret", SECRET, "Traceback"):
        assert hidden not in result.output
