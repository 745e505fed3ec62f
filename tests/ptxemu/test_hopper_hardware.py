"""What an H200 answered (data/hopper.json, by tests/gpu/record_hopper.py), bit for bit."""

import json
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
from hopper_cases import answers

from ptxemu import run_ptx


def test_every_recorded_answer() -> None:
    record = json.loads((Path(__file__).parent / "data" / "hopper.json").read_text())
    ours = answers(run_ptx)
    assert len(ours) >= 39 and ours == record["answers"]
