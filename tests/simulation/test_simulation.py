"""Random histories on both kinds of stores: no anomalies. SPARKLOG_SIM_OPERATIONS makes it longer."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from sparklog.clock import SystemClock
from tests.history.events import Event
from tests.simulation.campaign import Campaign
from tests.simulation.simulate import KINDS, simulate

OPERATIONS = int(os.environ.get("SPARKLOG_SIM_OPERATIONS", "1500"))
FIRST_SEED = int(os.environ.get("SPARKLOG_SIM_FIRST_SEED", "1"))
PROJECT = Path(__file__).parents[2]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", KINDS)
def test_histories_have_no_anomalies(
    kind: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.CRITICAL)
    campaign = Campaign(SystemClock())
    campaign.run(OPERATIONS // len(KINDS), kinds=[kind], first_seed=FIRST_SEED)
    with capsys.disabled():
        if "SPARKLOG_SIM_OPERATIONS" in os.environ:
            print(f"\n{kind}: {campaign}")
    assert not campaign.failures, "\n".join(map(str, campaign.failures))
    assert campaign.faults.total() > 0


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
