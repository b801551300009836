"""The simulation finds what it is for: each safeguard that is switched off shows within a few histories."""

import logging

import pytest

from tests.simulation.broker_mutants import BROKER_MUTANTS
from tests.simulation.coordinator_mutants import COORDINATOR_MUTANTS
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.simulate import simulate
from tests.simulation.transaction_mutants import TRANSACTION_MUTANTS

HISTORIES = 150
ALL = (*MUTANTS, *BROKER_MUTANTS, *TRANSACTION_MUTANTS, *COORDINATOR_MUTANTS)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("mutant", ALL, ids=[mutant.name for mutant in ALL])
def test_a_missing_safeguard_is_found(mutant: Mutant, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    with mutant.apply():
        for seed in range(mutant.first, mutant.first + HISTORIES):
            outcome = simulate(seed, mutant.kind, focus=mutant.focus)
            if not outcome.is_clean:
                print(outcome)
                return
    pytest.fail(f"{mutant.name}: not noticed in {HISTORIES} histories")
