"""The palette: contrast and colour-blind distance in both themes, computed from the style sheet; one source of it."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from attnbook.figures import style

ROOT = Path(__file__).parents[2]
PALETTE = style.palette()
THEMES = ("light", "dark")

# Machado, Oliveira, Fernandes 2009: simulation of full dichromacy, on linear RGB.
SEEN_BY = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "everybody else": np.eye(3),
}


def linear(colour: str) -> np.ndarray:
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def contrast(a: str, b: str) -> float:
    """WCAG 2 contrast ratio."""
    la, lb = (float(linear(x) @ [0.2126, 0.7152, 0.0722]) for x in (a, b))
    return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Bjoern Ottosson's Oklab of linear RGB, times 100."""
    lms = np.cbrt(
        np.array(
            [
                [0.4122214708, 0.5363325363, 0.0514459929],
                [0.2119034982, 0.6806995451, 0.1073969566],
                [0.0883024619, 0.2817188376, 0.6299787005],
            ]
        )
        @ np.clip(rgb, 0, 1)
    )
    return (
        100
        * np.array(
            [
                [0.2104542553, 0.7936177850, -0.0040720468],
                [1.9779984951, -2.4285922050, 0.4505937099],
                [0.0259040371, 0.7827717662, -0.8086757660],
            ]
        )
        @ lms
    )


def test_contrast_of_white_and_black_is_21():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("theme", THEMES)
def test_both_themes_give_every_variable_a_colour(theme):
    names = (
        {f"--role-{r}" for r in style.ROLES} | {f"--mem-{m}" for m in style.MEMORIES} | {f"--bk-s{i}" for i in range(8)}
    )
    names |= {f"--role-{r}-soft" for r in style.ROLES} | {f"--mem-{m}-soft" for m in style.MEMORIES}
    names |= {"--bk-bg", "--bk-ink", "--bk-muted", "--bk-line", "--bk-panel", "--bk-on", "--bk-accent", "--bk-focus"}
    assert names <= PALETTE[theme].keys()
    assert all(len(PALETTE[theme][n]) == 7 and PALETTE[theme][n][0] == "#" for n in names)


@pytest.mark.parametrize("theme", THEMES)
def test_text_reaches_its_contrast(theme):
    p = PALETTE[theme]
    for name in [f"--role-{r}" for r in style.ROLES] + ["--bk-muted", "--bk-accent"]:
        assert contrast(p[name], p["--bk-bg"]) >= 4.5, f"{name} on the page"
    for role in ("load", "mma", "softmax", "correction", "epilogue"):
        assert contrast(p["--bk-on"], p[f"--role-{role}"]) >= 4.5, f"text on a bar of {role}"
    soft = [f"--role-{r}-soft" for r in style.ROLES] + [f"--bk-s{i}" for i in range(8)] + ["--bk-panel", "--bk-bg"]
    for name in soft:
        assert contrast(p["--bk-ink"], p[name]) >= 7, f"ink on {name}"
    for name in ["--bk-panel", *(f"--role-{r}-soft" for r in style.ROLES)]:
        assert contrast(p["--bk-muted"], p[name]) >= 4.5, f"muted text on {name}"
    for role in ("load", "mma", "softmax", "epilogue"):
        assert contrast(p[f"--role-{role}"], p[f"--role-{role}-soft"]) >= 3, f"edge of a panel of {role}"


@pytest.mark.parametrize("theme", THEMES)
def test_code_reaches_its_contrast(theme):
    """Every kind of token on every background that a line of a listing or of a diff can have."""
    p = PALETTE[theme]
    grounds = ["--bk-panel", "--bk-bg", "--role-load-soft", "--role-mma-soft", "--role-softmax-soft"]
    tokens = re.findall(r"\.bk-code \.(?:k|c|str|num) \{ color: var\((--[\w-]+)\)", style.figures_css())
    assert len(tokens) == 4
    for token, ground in itertools.product([*tokens, "--bk-ink"], grounds):
        assert contrast(p[token], p[ground]) >= 4.5, f"{token} on {ground}"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("eyes", SEEN_BY)
def test_roles_stay_apart(theme, eyes):
    roles = ("load", "mma", "softmax", "correction", "epilogue")  # waiting is always hatched
    seen = {r: oklab(np.array(SEEN_BY[eyes]) @ linear(PALETTE[theme][f"--role-{r}"])) for r in roles}
    for a, b in itertools.combinations(roles, 2):
        assert np.linalg.norm(seen[a] - seen[b]) >= 8, f"{a} and {b} look alike to {eyes}"


def test_print_is_light():
    sheet = style.figures_css()
    printed = style.palette(sheet.split("@media print", 1)[1].split("{", 1)[1])["light"]
    for name, value in printed.items():
        if name.startswith("--role") or name.startswith("--bk-s"):
            assert value == PALETTE["light"][name]
    assert {n for n in PALETTE["light"] if n.startswith("--role")} == {n for n in printed if n.startswith("--role")}


def test_book_css_carries_the_figures_style_sheet():
    page = (ROOT / "book/assets/book.css").read_text(encoding="utf-8")
    assert style.embed(page) == page, "run: python -m attnbook.figures.style book/assets/book.css"


def test_embed_refuses_a_file_without_the_block():
    with pytest.raises(ValueError, match="put both lines back"):
        style.embed("body { }")


def test_no_type_is_smaller_than_11_pixels():
    sizes = [float(x) for x in re.findall(r"svg\.bk text[^{]*\{[^}]*font-size: ([\d.]+)px", style.figures_css())]
    assert sizes and min(sizes) >= 11
