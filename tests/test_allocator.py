"""Freed memory stays with the process, so that its pages need not be touched for the first time again."""

import resource
import subprocess
import sys

import numpy as np
import pytest

from sparklog.allocator import keep_freed_memory

pytestmark = pytest.mark.slow

MIB = 1 << 20


def faults_of_a_hundred_buffers() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(25):
        [np.ones(8 * MIB, np.uint8) for _ in range(4)]
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def main() -> None:
    kept = keep_freed_memory()
    faults_of_a_hundred_buffers()
    print(kept, faults_of_a_hundred_buffers())


def test_buffers_that_come_and_go_touch_no_new_pages() -> None:
    # In a process of its own: what a test leaves set would change all others.
    output = subprocess.run([sys.executable, __file__], check=True, capture_output=True, text=True).stdout
    kept, faults = output.split()
    if kept == "False":
        pytest.skip("no glibc here")
    assert int(faults) < 2048, "100 buffers of 2,048 pages each"


if __name__ == "__main__":
    main()
