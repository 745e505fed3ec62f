"""`python -m attnbook.book build` and `python -m attnbook.book canon --check | --fix`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnbook.book import canon
from attnbook.book.toc import BookError, find_root


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit status (0 well, 1 something to mend, 130 interrupted)."""
    parser = argparse.ArgumentParser(prog="python -m attnbook.book", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    build_args = commands.add_parser("build", help="run the chapters and make the HTML pages")
    build_args.add_argument("--root", type=Path, help="folder with _toc.yml (default: here, or the checkout)")
    build_args.add_argument("--timeout", type=float, default=600, help="seconds one cell may take (default 600)")
    build_args.add_argument("--fresh", action="store_true", help="run every chapter again, whatever is kept")

    canon_args = commands.add_parser("canon", help="check or mend the form of the notebooks in git")
    mode = canon_args.add_mutually_exclusive_group(required=True)
    mode.add_argument("--check", action="store_true", help="name the notebooks that are not in canonical form")
    mode.add_argument("--fix", action="store_true", help="rewrite them in place")
    canon_args.add_argument("files", nargs="*", type=Path, help="notebooks (default: every one under book/)")

    args = parser.parse_args(argv)
    try:
        if args.command == "canon":
            files = args.files or sorted(find_root(None).glob("book/**/*.ipynb"))
            return canon.run([f for f in files if ".ipynb_checkpoints" not in f.parts], fix=args.fix)
        from attnbook.book.build import build

        build(find_root(args.root), timeout=args.timeout, fresh=args.fresh)
        return 0
    except BookError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nStopped. The chapters run so far are kept, and the last complete pages are as they were.",
            file=sys.stderr,
        )
        return 130


if __name__ == "__main__":
    sys.exit(main())
