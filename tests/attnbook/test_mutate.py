"""Edits of a compiled kernel's PTX: each changes what it says, and what it changes is noticed."""

import pytest

pytest.importorskip("torch")

import attnbook
import ptxemu
from attnbook import mutate


def outcome(stage, edit, **options):
    try:
        return attnbook.run(stage, seqlen=256, seed=3, ptx_edit=edit, **options).verdict.ok
    except ptxemu.EmulationError:
        return False


def test_p_moved_by_nothing_is_right_and_over_unread_scores_is_not():
    assert outcome("p_in_tmem", mutate.move_p(0))
    assert not outcome("p_in_tmem", mutate.move_p(64))


def test_only_p_in_tmem_can_be_moved():
    with pytest.raises(ValueError, match="no P in tensor memory"):
        mutate.move_p(64)(attnbook.compile("baseline").ptx)


def test_the_sync_before_pv_is_needed():
    seeds = range(8)
    assert not all(
        outcome("p_in_tmem", mutate.drop_sync(1), schedule="adversarial", schedule_seed=seed) for seed in seeds
    )


def test_a_sync_that_is_not_there():
    with pytest.raises(ValueError, match=r"number = 3.*3 barriers"):
        mutate.drop_sync(3)(attnbook.compile("p_in_tmem").ptx)


@pytest.mark.parametrize("product", ["QK", "PV"])
def test_what_is_written_swizzled_and_read_plain_is_noticed(product):
    assert not outcome("swizzle", mutate.read_plain(product))


def test_only_swizzled_operands_can_be_read_plain():
    with pytest.raises(ValueError, match="no operand of QK"):
        mutate.read_plain("QK")(attnbook.compile("p_in_tmem").ptx)
    with pytest.raises(ValueError, match="neither"):
        mutate.read_plain("QV")


def test_a_wait_for_the_wrong_parity_stops_everyone():
    edit = mutate.flip_parity("kv_empty")
    with pytest.raises(ptxemu.DeadlockError):
        attnbook.run("warp_specialization", seqlen=128, ptx_edit=edit)
    assert mutate.waits(edit(attnbook.compile("warp_specialization").ptx)).count("kv_empty") == 1
    with pytest.raises(ValueError, match="no wait on 'nothing'"):
        mutate.flip_parity("nothing")(attnbook.compile("warp_specialization").ptx)


def test_one_wait_of_several_can_be_dropped():
    ptx = attnbook.compile("two_q_tiles").ptx
    assert mutate.waits(ptx).count("p_full") == 2
    first, second = (mutate.drop_wait("p_full", n)(ptx) for n in (0, 1))
    assert first != second
    assert mutate.waits(first) == mutate.waits(second)
    assert mutate.waits(first).count("p_full") == 1
    with pytest.raises(ValueError, match="2 places"):
        mutate.drop_wait("p_full", 2)(ptx)
