"""The compiled loops under AddressSanitizer and UndefinedBehaviorSanitizer, with damaged batches.

They are compiled anew, beside tests/format/fuzz_kernels.c, by the machine's own compiler: the one that builds
them for users brings no sanitizers. Where there is none, this is skipped, and says so.
SPARKLOG_KERNEL_ROUNDS sets the number of inputs (make chaos: 1,000,000), SPARKLOG_SEED repeats a run.
"""

import json
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparklog.format import kernels
from sparklog.format.encode import EncodeOptions, encode_batches

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("SPARKLOG_KERNEL_ROUNDS", "30000"))
SEED = int(os.environ.get("SPARKLOG_SEED", "0")) or random.SystemRandom().randrange(1, 1_000_000)
DRIVER = Path(__file__).parent / "fuzz_kernels.c"
FLAGS = [
    "-std=c11",
    "-g",
    "-O1",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
]


@pytest.fixture(scope="module")
def compiler(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One that has the sanitizers."""
    directory = tmp_path_factory.mktemp("compiler")
    source = directory / "nothing.c"
    source.write_text("int main(void) { return 0; }\n")
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path is None:
            continue
        built = run(path, *FLAGS, str(source), "-o", str(directory / "nothing"))
        if built.returncode == 0 and run(str(directory / "nothing")).returncode == 0:
            return path
    pytest.skip("no compiler with AddressSanitizer here (cc, gcc, clang): the compiled loops were NOT fuzzed")


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False)


def build(compiler: str, source: str, directory: Path) -> str:
    kernels_c, program = directory / "kernels.c", directory / "fuzz"
    kernels_c.write_text(source)
    built = run(compiler, *FLAGS, f'-DKERNELS="{kernels_c}"', str(DRIVER), "-o", str(program))
    assert built.returncode == 0, built.stderr
    return str(program)


@pytest.fixture(scope="module")
def source() -> str:
    return kernels.PATH.with_name("kernels.c").read_text()


@pytest.fixture
def corpus(tmp_path: Path, columns: Callable[..., Any]) -> str:
    """Batches as clients make them: of one record and of hundreds, with and without keys, nulls, headers."""
    chance = random.Random(3)
    path = tmp_path / "corpus"
    with path.open("wb") as file:
        for count in (1, 2, 7, 40, 300):
            for size in (0, 3, 20, 150):
                values = [None if not chance.randrange(9) else chance.randbytes(size) for _ in range(count)]
                keys = [b"k" * (number % 20) for number in range(count)] if count % 2 else None
                headers = [[{"key": "h", "value": b"v" * size}] * (number % 3) for number in range(count)]
                rows = columns(values, keys=keys, headers=headers if size % 2 else None)
                whole = encode_batches(rows, EncodeOptions(producer_id=5, producer_epoch=0, base_sequence=1))
                data = whole.to_bytes()
                if len(data) <= 1 << 16:
                    file.write(struct.pack("<I", len(data)) + data)
    return str(path)


def test_damaged_batches_lead_nowhere_else(compiler: str, source: str, corpus: str, tmp_path: Path) -> None:
    done = run(build(compiler, source, tmp_path), corpus, str(SEED), str(ROUNDS))
    assert done.returncode == 0, f"SPARKLOG_SEED={SEED}: {done.stderr[-4000:]}"
    reached = json.loads(done.stdout)
    assert all(count > ROUNDS // 1000 for count in reached.values()), reached


@pytest.mark.parametrize(
    ("bound", "instead"),
    [
        ("length < 1 || length > stop - at", "length < 1"),  # a record ends within its body
        ("if (end - at >= 2) {", "if (end - at >= 1) {"),  # a varint of one byte, at the end
        ("count[body] < 0 || count[body] > rows - row", "count[body] < 0"),  # the room for fields
        ("if (length + VARINT_BYTES > to_end - to)", "if (length > to_end - to)"),  # the room for records
        ("count[row] < 0 || count[row] > total - header", "count[row] < 0"),  # the room for headers' places
        ("+ 2 * VARINT_BYTES > to_end - to)", "> to_end - to)"),  # the room for headers
    ],
)
def test_a_bound_that_is_left_out_is_found(
    compiler: str, source: str, corpus: str, tmp_path: Path, bound: str, instead: str
) -> None:
    assert source.count(bound) == 1, bound
    program = build(compiler, source.replace(bound, instead), tmp_path)
    done = run(program, corpus, "1", "30000")
    assert done.returncode != 0, "nothing was noticed"
    assert "Sanitizer" in done.stderr or "runtime error" in done.stderr
