"""The ladder: all rows, in order, with what is published; and the kernels that are there."""

import importlib
from itertools import pairwise

import pytest

import attnbook
from attnbook.ladder import LADDER, PUBLISHED, Stage, UnknownStage


def test_rows_are_numbered_and_named_apart():
    assert [stage.number for stage in LADDER] == list(range(1, 23))
    assert len({stage.slug for stage in LADDER}) == len({stage.title for stage in LADDER}) == len(LADDER)
    assert [stage.previous for stage in LADDER] == [None, *range(1, 22)]
    assert all(stage.idea and stage.slug.isidentifier() for stage in LADDER)


@pytest.mark.parametrize(
    ("key", "figures"),
    [
        ("baseline", [14.2, 14.1, 13.7]),
        ("swizzle", [25.9, 25.9, 26.2]),
        ("software_exp2", [69.3, 70.1, 70.6]),
        ("persistent", [90.7, 90.3, 89.8]),
        ("l2_promotion", [94.4, 94.4, 94.1]),
        ("register_budget", []),
    ],
)
def test_published_figures(key, figures):
    assert list(LADDER[key].published.values()) == figures
    assert list(LADDER[key].published) == [4096, 8192, 16384][: len(figures)]


def test_published_figures_climb():
    """No published idea costs more than the noise of its measurement, half a point."""
    for before, after in pairwise(stage for stage in LADDER if stage.published):
        assert all(after.published[n] > before.published[n] - 0.6 for n in after.published), after
    assert PUBLISHED.url.startswith("https://") and "B200" in PUBLISHED.conditions


def test_figures_cannot_be_changed():
    with pytest.raises(TypeError):
        LADDER[1].published[4096] = 100.0


def test_a_stage_is_found_by_number_slug_or_itself():
    stage = LADDER[3]
    assert stage.slug == "swizzle" and LADDER["swizzle"] is LADDER["3"] is LADDER[stage] is stage
    assert attnbook.ladder is LADDER and LADDER[:2] == (LADDER[1], LADDER[2])


@pytest.mark.parametrize("key", [0, 23, "swizle", "", None])
def test_a_stage_that_is_not_there_is_named_with_those_that_are(key):
    with pytest.raises(UnknownStage) as error:
        LADDER[key]
    assert repr(key) in str(error.value) and "1 to 22" in str(error.value) and "swizzle" in str(error.value)


def test_implemented_stages_have_the_module_they_name():
    assert LADDER[1].implemented and LADDER["final"] is LADDER.implemented[-1]
    for stage in LADDER.implemented:
        module = importlib.import_module(stage.module)
        assert module.__file__ == str(stage.path)
        assert callable(module.check) and callable(module.Attention)


def test_stages_that_are_not_written_say_so():
    missing: list[Stage] = [stage for stage in LADDER if not stage.implemented]
    for stage in missing:
        assert stage.path is None
        with pytest.raises(ValueError, match=f"stage {stage.number} \\({stage.slug}\\) has no kernel yet"):
            stage.module  # noqa: B018


def test_features_are_inherited_and_replaced():
    assert "p_in_smem" in LADDER[1].features and "p_in_smem" not in LADDER[2].features
    assert set(LADDER[2].features) < set(LADDER[22].features)


def test_it_prints_as_a_table():
    lines = str(LADDER).splitlines()
    assert len(lines) == 22 and lines[0].endswith("here") and "14.2 / 14.1 / 13.7" in lines[0]
