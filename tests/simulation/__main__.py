"""Simulate histories: python -m tests.simulation [--seed N [--store KIND]] [--operations N]."""

import argparse
import os
import sys
import traceback
from pathlib import Path

import msgspec

from sparklog.clock import SystemClock
from tests.simulation.campaign import Campaign, be_quiet
from tests.simulation.setting import KINDS
from tests.simulation.simulate import simulate


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this history alone")
    parser.add_argument("--store", choices=KINDS, action="append", help="default: all kinds")
    parser.add_argument(
        "--operations", type=int, default=int(os.environ.get("SPARKLOG_SIM_OPERATIONS", "20000"))
    )
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--history", type=Path, help="with --seed: write the events there, as JSONL")
    options = parser.parse_args(words)
    kinds = options.store or list(KINDS)
    if options.seed is None:
        be_quiet()
        campaign = Campaign(SystemClock(), kinds=kinds, first_seed=options.first_seed)
        campaign.run(options.operations, jobs=options.jobs, report=lambda text: print(text, flush=True))
        print(campaign)
        return 1 if campaign.totals.failures else 0
    clean = True
    for kind in kinds:
        outcome = simulate(options.seed, kind)
        clean = clean and outcome.is_clean
        print(outcome)
        print(dict(outcome.faults))
        if outcome.error is not None:
            traceback.print_exception(outcome.error)
        if options.history:
            lines = [msgspec.json.encode(event) + b"\n" for event in outcome.events]
            options.history.write_bytes(b"".join(lines))
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
