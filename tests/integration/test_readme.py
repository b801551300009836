"""The README's examples print what the README says they print."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


@pytest.mark.spark
def test_the_examples_print_what_is_shown(tmp_path: Path) -> None:
    examples = EXAMPLE.findall(README.read_text())
    assert len(examples) == 2, "a batch, and a stream that goes on with what the batch has made"
    code = "".join(code for code, _ in examples)
    stream = examples[1][0]
    script = tmp_path / "examples.py"
    # The stream is run twice: the second time there is nothing left to do.
    script.write_text((code + stream).replace("/tmp/shop-", f"{tmp_path}/"))
    words = [sys.executable, str(script)]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stderr[-3000:]
    shown = "".join(text.strip() + "\n" for _, text in examples)
    found = "".join(line + "\n" for line in result.stdout.splitlines() if line)
    assert found == shown + examples[1][1]
