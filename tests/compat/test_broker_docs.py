"""The example of docs/kafka-clients.md prints what the page shows."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.broker_process import BrokerProcess

PAGE = Path(__file__).resolve().parents[2] / "docs" / "kafka-clients.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


def test_the_example_prints_what_is_shown(server: BrokerProcess) -> None:
    example = EXAMPLE.search(PAGE.read_text())
    assert example is not None, "the page has no example followed by its output"
    code, shown = example.groups()
    assert code.count("127.0.0.1:9092") == 2
    code = code.replace("127.0.0.1:9092", server.bootstrap)
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout == shown
