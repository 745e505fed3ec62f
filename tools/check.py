"""Everything that CI checks, one step after another; all of them run, and a table at the end says how each went.

Run by `make test`. Arguments are handed to pytest (then only the tests named run, on one process).
"""

from __future__ import annotations

import subprocess
import sys
import time

PYTHON = [sys.executable, "-m"]
STEPS = {
    "ruff check": [*PYTHON, "ruff", "check", "."],
    "ruff format": [*PYTHON, "ruff", "format", "--check", "."],
    "notebooks": [*PYTHON, "attnbook.book", "canon", "--check"],
    "codespell": [*PYTHON, "codespell_lib", "."],
    "mypy": [*PYTHON, "mypy"],
    # Two processes, each file on one of them: the tests of the built pages share one browser.
    "pytest": [*PYTHON, "pytest", "-n", "2", "--dist", "loadfile", "--durations", "10"],
}


def main(arguments: list[str]) -> int:
    if arguments:
        STEPS["pytest"] = [*PYTHON, "pytest", *arguments]
    rows = []
    for name, command in STEPS.items():
        print(f"\n== {name}: {' '.join(command[2:])}", flush=True)
        start = time.perf_counter()
        status = subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode
        rows.append((name, status, time.perf_counter() - start))
    print("\n== summary")
    for name, status, seconds in rows:
        print(f"  {name:12} {'ok' if status == 0 else f'FAILED ({status})':12} {seconds:7.1f} s")
    print(f"  {'together':25} {sum(row[2] for row in rows):7.1f} s", flush=True)
    return 1 if any(status for _, status, _ in rows) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
