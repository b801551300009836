"""docs/spark-issues.md: Spark still behaves as the reports say, and as sparklog works around."""

import ast
import contextlib
import io
import re
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

REPORTS = Path(__file__).resolve().parents[2] / "docs" / "spark-issues.md"


def parsed(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def reports() -> list[tuple[str, str, str, str]]:
    """Title, reproduction, what is expected and what this Spark should show, of each report."""
    found = []
    for section in REPORTS.read_text().split("\n## ")[1:]:
        (code,) = re.findall(r"^```python\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
        pattern = r"Expected: `(.*?)`\. Found(?: since Spark ([\d.]+))?: `(.*?)`\."
        ((expected, since, actual),) = re.findall(pattern, section)
        has_it = not since or parsed(pyspark.__version__) >= parsed(since)
        found.append((section.splitlines()[0], code, expected, actual if has_it else expected))
    return found


@pytest.mark.exhaustive
@pytest.mark.spark
@pytest.mark.parametrize(
    ("title", "code", "expected", "actual"), reports(), ids=["active session", "kept plan", "leaks"]
)
def test_spark_behaves_as_reported(
    spark: SparkSession, title: str, code: str, expected: str, actual: str
) -> None:
    assert "sparklog" not in code
    assert spark.getActiveSession() is not None, "the reproduction begins in a thread that has a session"
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(code, "reproduction", "exec"), {"__name__": "__main__"})
    outcome = ast.literal_eval(said.getvalue())
    if actual != expected:
        mended = outcome == ast.literal_eval(expected)
        assert not mended, f"Spark has mended this: {title}. What we do about it can go"
    assert outcome == ast.literal_eval(actual)
