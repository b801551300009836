"""The README's ten lines do what the README says they print."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)


@pytest.mark.spark
def test_the_ten_lines_print_what_is_shown(tmp_path: Path) -> None:
    example = EXAMPLE.search(README.read_text())
    assert example is not None, "the README has no example followed by its output"
    code, shown = example.groups()
    script = tmp_path / "ten_lines.py"
    script.write_text(code.replace("/tmp/shop-log", str(tmp_path / "log")))
    words = [sys.executable, str(script)]
    result = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    shutil.rmtree(tmp_path / "log", ignore_errors=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.strip() == shown.strip()
