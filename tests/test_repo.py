"""The repository itself: its notebooks, its pins, its licences, and that it speaks of nothing but the project."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

from attnbook.book import canon
from attnbook.book.toc import chapters

ROOT = Path(__file__).resolve().parents[1]
# Where a link in the project may lead: documentation, papers, licences, sources. Nothing that only some can reach.
HOSTS = {
    "arxiv.org",
    "creativecommons.org",
    "developer.nvidia.com",
    "doi.org",
    "docs.nvidia.com",
    "github.com",
    "openreview.net",
    "tridao.me",
    "www.apache.org",
    "www.nvidia.com",
    "www.w3.org",
}


def tracked() -> list[Path]:
    """The files of the project: those in git where there is git, less what other people wrote."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    files = [ROOT / name for name in listed.split("\0") if name]
    third_party = ROOT / "book" / "assets" / "vendor"
    licences = {ROOT / "LICENSE", ROOT / "LICENSE-prose"}
    return [file for file in files if file.is_file() and third_party not in file.parents and file not in licences]


def texts() -> dict[str, str]:
    found = {}
    for file in tracked():
        try:
            found[file.relative_to(ROOT).as_posix()] = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found


def test_notebooks_are_canonical(capsys) -> None:
    notebooks = [file for file in tracked() if file.suffix == ".ipynb"]
    assert notebooks
    assert canon.run(notebooks, fix=False) == 0, capsys.readouterr().out


def test_every_chapter_is_in_the_book_and_nothing_else_is() -> None:
    named = {chapter.path for chapter in chapters(ROOT)}
    written = {file for file in tracked() if file.suffix in (".ipynb", ".md") and file.parent == ROOT / "book"}
    assert written == named


def test_no_path_of_some_machine() -> None:
    place = re.compile(r"(?<![\w.~*}$)/-])/(?:home|root|tmp|work|Users)/[\w.]")
    found = [
        f"{name}: {line.strip()[:120]}"
        for name, text in texts().items()
        for line in text.splitlines()
        if place.search(line)
    ]
    assert found == []


def test_links_lead_to_known_hosts_only() -> None:
    link = re.compile(r"https?://([\w.-]+\.[a-z]{2,})")
    found = {f"{name}: {host}" for name, text in texts().items() for host in link.findall(text) if host not in HOSTS}
    assert found == set()


def test_speaks_of_the_project_only() -> None:
    """No numbered tickets, no talk about how the text came to be: git and the tracker know that."""
    talk = re.compile(r"\b(?:issue|ticket|PR) #?\d+\b|co-authored-by|\bas an? (?:AI|assistant)\b", re.IGNORECASE)
    mine = Path(__file__).relative_to(ROOT).as_posix()
    found = [f"{name}: {hit[0]}" for name, text in texts().items() if name != mine for hit in talk.finditer(text)]
    assert found == []


def test_pins_are_exact_and_agree() -> None:
    pins: dict[str, str] = {}
    for name in ("constraints.txt", "requirements.txt", "requirements-dev.txt", "requirements-peers.txt"):
        for line in (ROOT / name).read_text().splitlines():
            if not line or line.startswith(("#", "-c ", "-r ")):
                continue
            match = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[[a-z0-9,]+\])?==([\w.]+)", line)
            assert match, f"{name}: {line!r} is not an exact pin"
            package = re.sub(r"[-_.]+", "-", match[1]).lower()
            assert pins.setdefault(package, match[2]) == match[2], f"{name}: {line} disagrees with {pins[package]}"
    assert pins["jupyter-book"] == "1.0.4.post1"
    assert pins["sphinx-book-theme"] == "1.2.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extras in project["optional-dependencies"].values():
        for line in extras:
            match = re.fullmatch(r"([A-Za-z0-9-]+)(?:\[.*\])?==([\w.]+)", line)
            if match:
                assert pins[match[1]] == match[2]


def test_licences_stand_in_full() -> None:
    apache = (ROOT / "LICENSE").read_text()
    assert "Apache License" in apache
    assert "Version 2.0, January 2004" in apache
    assert "END OF TERMS AND CONDITIONS" in apache
    prose = (ROOT / "LICENSE-prose").read_text()
    assert "Attribution 4.0 International" in prose
    assert "Section 8 -- Interpretation." in prose
    readme = (ROOT / "README.md").read_text()
    for part in ("Apache", "CC BY 4.0", "EULA", "no legal advice", "LICENSE-prose"):
        assert part in readme


def test_vendored_files_have_their_notice_and_licence() -> None:
    vendor = ROOT / "book" / "assets" / "vendor"
    notice = (vendor / "NOTICE").read_text()
    for folder in vendor.iterdir():
        if folder.is_dir():
            assert f"{folder.name}/" in notice
            assert (folder / "LICENSE").is_file()


def test_readme_names_targets_that_exist() -> None:
    help_text = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    targets = set(re.findall(r"^  make (\w+)", help_text, re.MULTILINE))
    assert {"book", "test", "lab", "fmt", "clean", "venv", "help"} <= targets
    readme = (ROOT / "README.md").read_text()
    assert set(re.findall(r"\bmake ([a-z]+)\b(?=`|$| )", readme)) & targets >= {"book", "test", "lab"}
    for name in re.findall(r"`((?:src|book|tests|tools)/[\w./]*)`", readme):
        assert (ROOT / name).exists(), name
