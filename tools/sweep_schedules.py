"""Run stages under many orders of events and look for races: python tools/sweep_schedules.py [--seeds N] [STAGE ...].

For each stage: the answer under the fair order, then the same bits under every seed of the adversarial one, and no
finding in any. Exit code 1 if one differs or is found. Ctrl-C says what was done.
"""

from __future__ import annotations

import argparse
import sys

import torch
from tqdm import tqdm

import attnbook


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", nargs="*", help="numbers or slugs (default: all that are written)")
    parser.add_argument("--seeds", type=int, default=20, help="orders for each stage (default: 20)")
    parser.add_argument("--seqlen", type=int, default=384, help="keys, and queries (default: 384)")
    options = parser.parse_args()
    bad = 0
    for stage in [attnbook.ladder[name] for name in options.stage] or attnbook.ladder.implemented:
        problem = {"seqlen": options.seqlen, "family": "mixed_max", "lse": True, "races": True}
        fair = attnbook.run(stage, **problem)
        wrong = [] if fair.verdict.ok and not fair.run.findings else ["fair"]
        done = 0
        try:
            for seed in tqdm(range(options.seeds), desc=stage.slug, unit=" order", leave=False):
                run = attnbook.run(stage, schedule="adversarial", schedule_seed=seed, **problem)
                same = torch.equal(run.o, fair.o) and torch.equal(run.lse, fair.lse)
                if not same or run.run.findings:
                    wrong.append(str(seed))
                done += 1
        finally:
            found = f"differs or has findings: {', '.join(wrong)}" if wrong else "the same bits, no finding"
            print(f"{stage.number} {stage.slug:22} fair and {done} drawn orders: {found}", flush=True)
        bad += bool(wrong)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
