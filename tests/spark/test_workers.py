"""What a worker has imported is out of the collector's sight from its second task on."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


def test_a_worker_settles_in_with_its_second_task() -> None:
    code = (
        "import gc; from sparklog.spark.notices import prepare_worker\n"
        "before = gc.get_freeze_count()\n"  # not 0 in Python 3.12
        "prepare_worker(); assert gc.get_freeze_count() == before\n"
        "prepare_worker(); frozen = gc.get_freeze_count(); assert frozen > before + 1000\n"
        "kept = [[] for _ in range(5000)]; prepare_worker(); assert gc.get_freeze_count() <= frozen"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
