"""IKET ranges: from the tables of the module and the marks in the code to events."""

import numpy as np

from ptxemu import Config, run_ptx


def words(*values, name=b""):
    data = np.array(values, np.uint32).tobytes() + name
    return ", ".join(map(str, data))


DECLARE = f"""
.visible .global .align 1 .b8 __iket_evt_decl_compute_2_attrs[60] = {{{words(60, 2, 3, 5, 1, 77, 7, name=b"compute")}}};
.visible .global .align 1 .b8 __iket_evt_decl_load_phase_1_attrs[60] =
{{{words(60, 1, 3, 0, 1, 78, 10, name=b"load phase")}}};
.visible .global .align 1 .b8 __iket_evt_decl_here_3_attrs[60] = {{{words(60, 3, 3, 0, 0, 0, 4, name=b"here")}}};
.visible .global .align 1 .b8 __iket_meta_info[48] = {{{words(48, 0, 5, 31, 32, 60, 1, 0, 3)}}};
"""


def mark(number, payload=None):
    store = "" if payload is None else f"st.weak.shared.b32 [%r+4], {payload};"
    return f"""{{ .reg .b32 %r, %t; mov.b32 %r, %cluster_ctarank; mov.u32 %t, %globaltimer_lo; or.b32 %t, %t, {number};
        mad.lo.u32 %r, %r, 0x1000000, 0x20; st.weak.shared.u32 [%r], %t; {store} pmevent.mask {number}; }}"""


TEXT = f""".version 9.0
.target sm_100a
.address_size 64
{DECLARE}
.visible .entry k() {{ .reg .b32 %w, %x; .reg .pred %p; mov.u32 %w, %tid.x; shr.u32 %w, %w, 5; add.u32 %x, %w, 40;
{mark(1)} {mark(31)} {mark(2, "%x")} setp.eq.u32 %p, %w, 0; @%p bra OVER; {mark(3)} OVER: {mark(31)} ret; }}"""


def test_ranges_payloads_and_marks():
    run = run_ptx(TEXT, block=(64,), grid=(2,), config=Config(trace=True))
    assert not run.bank_conflicts  # the doorbell is no shared memory of the kernel's
    for cta in range(2):
        for warp in range(2):
            mine = [
                (e.kind, e.name, e.data.get("payload")) for e in run.events if e.cta == cta and e.row == f"warp{warp}"
            ]
            want = [("begin", "load phase", None), ("end", "load phase", None), ("begin", "compute", 40 + warp)]
            want += [("mark", "here", None)] if warp else []
            assert mine == [*want, ("end", "compute", None)]


def test_without_a_trace_nothing_is_collected():
    assert run_ptx(TEXT, block=(64,)).events == []
