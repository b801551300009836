"""Random histories on both kinds of stores: no anomalies. SPARKLOG_SIM_OPERATIONS makes it longer."""

import logging
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec
import pytest

from sparklog.clock import SystemClock
from tests.history.events import Event
from tests.simulation.campaign import Campaign, Totals, simulate_range
from tests.simulation.setting import KINDS
from tests.simulation.simulate import simulate

OPERATIONS = int(os.environ.get("SPARKLOG_SIM_OPERATIONS", "1500"))
JOBS = int(os.environ.get("SPARKLOG_SIM_JOBS", "1"))
FIRST_SEED = int(os.environ.get("SPARKLOG_SIM_FIRST_SEED", "1"))
PROJECT = Path(__file__).parents[2]


@pytest.mark.timeout(7200)
def test_histories_have_no_anomalies(caplog: pytest.LogCaptureFixture, report: Callable[[str], None]) -> None:
    caplog.set_level(logging.CRITICAL)
    campaign = Campaign(SystemClock(), first_seed=FIRST_SEED)
    campaign.run(OPERATIONS, jobs=JOBS)
    report(str(campaign))
    assert not campaign.totals.failures, "\n".join(map(str, campaign.totals.failures))
    assert campaign.totals.faults.total() > 0
    assert set(campaign.totals.histories) == set(KINDS)


def test_worker_processes_add_up_to_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    whole, parts = Totals(), Totals()
    seeds = range(3, 9)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        future = pool.submit(simulate_range, "directory", seeds[:3])
        whole.merge(simulate_range("directory", seeds))
        parts.merge(simulate_range("directory", seeds[3:]))
        parts.merge(future.result())
    assert whole == parts


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_is_the_same_history(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    first, second = (simulate(8, kind, target=40) for _ in range(2))
    assert first.events == second.events
    assert first.steps == second.steps
    assert first.faults == second.faults


def test_a_printed_seed_replays_the_history_in_another_process(tmp_path: Path) -> None:
    """Also with another order of hashed sets."""
    seed, kind, path = 8, "remote", tmp_path / "history.jsonl"
    outcome = simulate(seed, kind)
    words = ["-m", "tests.simulation", "--seed", str(seed), "--store", kind, "--history", str(path)]
    result = subprocess.run(
        [sys.executable, *words],
        cwd=PROJECT,
        env={**os.environ, "PYTHONHASHSEED": "7"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout == f"{outcome}\n{dict(outcome.faults)}\n"
    events = [msgspec.json.decode(line, type=Event) for line in path.read_bytes().splitlines()]
    assert events == outcome.events
