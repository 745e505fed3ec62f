"""One stage of the ladder: where its data goes, what lies where in shared memory and TMEM, which CTA does what."""

from __future__ import annotations

from typing import Any

from attnbook.chips import B200, human_bytes
from attnbook.figures.budget import stage_number
from attnbook.figures.svg import Svg

ROLE_OF = {"Q": "load", "K": "load", "V": "load", "P": "softmax", "S": "mma", "O": "mma"}


def _module(stage: Any) -> Any:
    from attnbook.compile import stage_module

    return stage_module(stage)


def mma_operands() -> Svg:
    """What one tcgen05.mma of 128 x 128 x 16 reads and writes, to scale."""
    m, n, k = 128, 128, 16
    clocks = 2 * m * n * k / B200.mma_flops_per_clk
    s = Svg(
        760,
        352,
        title="One tcgen05.mma: 128 × 128 × 16",
        name="mma_operands",
        desc=(
            f"A, {m} rows by {k} columns of 16 bits in shared memory, times B, {k} by {n}, is added to D, {m} by {n} "
            f"of 32 bits in "
            f"TMEM. {2 * m * n * k:,} floating-point operations in {clocks:.0f} clocks."
        ),
        caption=(
            f"One thread issues one instruction, and {m * n * k:,} multiplications and as many additions follow. The "
            f"tensor core reads {human_bytes(2 * m * k)} of A and {human_bytes(2 * k * n)} of B from shared memory and "
            f"updates {human_bytes(4 * m * n)} of D in TMEM; the drawing is to "
            f"scale. At the published rate that takes {clocks:.0f} clocks, and eight of them in a row make one "
            f"128-deep product."
        ),
        source="shapes: PTX ISA, tcgen05.mma kind::f16; rate: FlashAttention-4 paper",
    )
    u = 1.7
    dx, dy = 190.0, 84.0
    dw, kw = n * u, k * u
    s.rect(dx, dy, dw, m * u, "m-tmem")
    s.rect(dx - 26 - kw, dy, kw, m * u, "m-smem")
    s.rect(dx, dy - 26 - kw, dw, kw, "m-smem")
    s.text(dx + dw / 2, dy + m * u / 2 - 10, "D", "th", anchor="middle")
    s.text(dx + dw / 2, dy + m * u / 2 + 14, f"{m} × {n} fp32 in TMEM", "t", anchor="middle")
    s.text(dx + dw / 2, dy + m * u / 2 + 33, "row i in lane i", "ts", anchor="middle")
    s.text(dx - 26 - kw / 2, dy + m * u / 2 + 7, "A", "th", anchor="middle")
    s.text(dx + dw / 2, dy - 26 - kw / 2 + 7, "B", "th", anchor="middle")
    s.bracket(dx - 26 - kw - 12, dy, dx - 26 - kw - 12, dy + m * u, f"M = {m}", away=-6)
    s.bracket(dx, dy + m * u + 16, dx + dw, dy + m * u + 16)
    s.text(dx + dw / 2, dy + m * u + 34, f"N = {n}", "ts", anchor="middle")
    s.bracket(dx - 26 - kw, dy + m * u + 16, dx - 26, dy + m * u + 16)
    s.text(dx - 26 - kw / 2, dy + m * u + 34, f"K = {k}", "ts", anchor="middle")
    s.arrow([(dx - 23, dy + m * u / 2), (dx - 2, dy + m * u / 2)], "r-mma")
    s.arrow([(dx + dw / 2, dy - 23), (dx + dw / 2, dy - 2)], "r-mma")
    tx = dx + dw + 44
    rows = [
        ("A read", f"{human_bytes(2 * m * k)}, shared memory"),
        ("B read", f"{human_bytes(2 * k * n)}, shared memory"),
        ("D updated", f"{human_bytes(4 * m * n)}, TMEM"),
        ("work", f"{2 * m * n * k:,} FLOP"),
        ("time", f"{clocks:.0f} clocks at {B200.mma_flops_per_clk:,.0f} FLOP/clk"),
    ]
    s.text(tx, dy + 4, "D += A · B", "tl")
    for i, (name, what) in enumerate(rows):
        s.text(tx, dy + 38 + 26 * i, name, "ts")
        s.text(tx + 78, dy + 38 + 26 * i, what, "t")
    s.text(tx, dy + 38 + 26 * len(rows) + 14, "issued by one thread, done later:", "ts")
    s.text(tx, dy + 38 + 26 * len(rows) + 32, "tcgen05.commit arrives on an mbarrier", "ts")
    s.text(tx, dy + 38 + 26 * len(rows) + 50, "when the MMAs before it are complete", "ts")
    return s


def smem_map(stage: Any = 1) -> Svg:
    """The CTA's dynamic shared memory, to scale, with its barriers drawn large."""
    module = _module(stage)
    number = stage_number(stage)
    items = sorted(module.SMEM.items(), key=lambda kv: kv[1][0])
    alias: dict[str, list[str]] = {}
    for name, host in getattr(module, "SMEM_ALIASES", {}).items():
        alias.setdefault(host, []).append(name)
    used = max(o + n for _, (o, n) in items)
    padded = -(-used // 8) * 8  # the struct is as aligned as its barriers
    limit = B200.smem_cta_bytes
    tiles = [(k, v) for k, v in items if v[1] >= 1024]
    small = [(k, v) for k, v in items if v[1] < 1024]
    barriers = getattr(module, "BARRIERS", {})
    s = Svg(
        760,
        158 + 30 * len(small) + 12,
        title=f"Stage {number}: the shared memory of one CTA",
        name="smem_map",
        desc="; ".join(f"{name} at byte {o:,}, {n:,} bytes" for name, (o, n) in items),
        caption=(
            f"{used:,} bytes of the {human_bytes(limit)} that a CTA may ask for, to scale"
            + (f"; padded to a multiple of 8, {padded:,}. " if padded > used else ". ")
            + " ".join(f"{' and '.join(v)} later takes the place of {k}." for k, v in alias.items())
            + f" The last {sum(n for _, (_, n) in small)} bytes are barriers and one word, drawn large below; "
            + f"{int(B200.smem_bytes // used)} such CTAs fit on an SM."
        ),
        source=f"from the facts of stage {number}, which a test holds against the compiled kernel",
    )
    x0, w, y, h = 8.0, 744.0, 34.0, 64.0
    s.text(x0, 20, "shared memory of one CTA", "tl")
    s.text(x0 + w, 20, f"{human_bytes(limit)}: the most a CTA may have", "ts", anchor="end")
    s.rect(x0, y, w, h, "off", rx=3)
    for name, (o, n) in tiles:
        bx, bw = x0 + w * o / limit, w * n / limit
        s.rect(bx, y, bw, h, "m-smem", rx=3)
        label = name + "".join(f", then {a}" for a in alias.get(name, []))
        s.text(bx + bw / 2, y + 28, label, "tl", anchor="middle")
        s.text(bx + bw / 2, y + 48, human_bytes(n), "t", anchor="middle")
        s.text(bx + 1, y + h + 17, f"{o:,}", "ts")
    free = x0 + w * used / limit
    s.text((free + x0 + w) / 2, y + 38, f"free: {human_bytes(limit - used)}", "ts", anchor="middle")
    first = small[0][1][0]
    bx = x0 + w * first / limit
    s.line(bx, y, bx, y + h + 8, "ln ink")
    s.text(bx + 4, y + h + 17, f"{first:,}", "ts")
    ty = y + h + 44
    s.text(x0, ty - 2, "byte", "ts")
    s.text(x0 + 74, ty - 2, "name", "ts")
    s.text(x0 + 190, ty - 2, "phase ends with", "ts")
    s.text(x0 + 400, ty - 2, "arrives", "ts")
    s.text(x0 + 640, ty - 2, "waits", "ts")
    for i, (name, (o, n)) in enumerate(small):
        yy = ty + 10 + 30 * i
        s.line(x0, yy - 2, x0 + w, yy - 2, "ln hair")
        s.text(x0, yy + 19, f"{o:,}", "tm")
        s.text(x0 + 74, yy + 19, name, "tb")
        b = barriers.get(name)
        if b is None:
            s.text(x0 + 190, yy + 19, f"{n} bytes: where tcgen05.alloc leaves its address", "t")
            continue
        ends = f"{b['count']} arrival" + ("s" if b["count"] > 1 else "")
        if b["bytes"]:
            ends += f" and {b['bytes']:,} bytes"
        s.text(x0 + 190, yy + 19, ends, "t")
        s.text(x0 + 400, yy + 19, b["arrives"].replace("K^T", "Kᵀ"), "t")
        s.text(x0 + 640, yy + 19, b["waits"], "t")
    return s


def tmem_map(stage: Any = 1) -> Svg:
    """The TMEM columns of a stage: 128 lanes high, 512 columns wide, to scale."""
    module = _module(stage)
    number = stage_number(stage)
    columns, lanes = int(B200.tmem_columns), int(B200.tmem_lanes)
    allocated = int(getattr(module, "TMEM_COLUMNS", columns))
    aliases: dict[str, tuple[int, int]] = getattr(module, "TMEM_ALIASES", {})
    s = Svg(
        760,
        290,
        title=f"Stage {number}: tensor memory",
        name="tmem_map",
        desc=f"{allocated} of {columns} columns allocated: "
        + "; ".join(f"{name} in columns {c} to {c + n - 1}" for name, (c, n) in module.TMEM.items()),
        caption=(
            f"TMEM has {lanes} lanes and {columns} columns of 32 bits. Stage {number} allocates {allocated} columns: "
            + " and ".join(f"{name} in columns {c}–{c + n - 1}" for name, (c, n) in module.TMEM.items())
            + ", each 128 × 128 in fp32, row i in lane i. "
            + "".join(
                f"{a} later takes columns {c}–{c + n - 1}, two 16-bit numbers a cell. " for a, (c, n) in aliases.items()
            )
            + "Warp w reaches the 32 lanes of its own quarter only."
            + (f" {columns // allocated} CTAs fit on one SM." if columns // allocated > 1 else "")
        ),
        source=f"from the facts of stage {number}, which a test holds against the compiled kernel",
    )
    x0, y0, w, h = 84.0, 46.0, 664.0, 200.0
    s.text(8, 20, "TMEM of one SM", "tl")
    s.rect(x0, y0, w, h, "off")
    for name, (c, n) in module.TMEM.items():
        bx, bw = x0 + w * c / columns, w * n / columns
        s.rect(bx, y0, bw, h, "m-tmem")
        s.text(bx + bw / 2, y0 + h / 2 - 6, name, "th", anchor="middle")
        s.text(bx + bw / 2, y0 + h / 2 + 16, f"{lanes} × {n} fp32", "t", anchor="middle")
        s.text(bx + bw / 2, y0 + h / 2 + 36, human_bytes(4 * lanes * n), "ts", anchor="middle")
    for name, (c, n) in aliases.items():
        bx, bw = x0 + w * c / columns, w * n / columns
        s.rect(bx + 3, y0 + h - 46, bw - 6, 40, "soft-softmax dash", rx=3)
        s.text(bx + bw / 2, y0 + h - 21, f"then {name}", "tb", anchor="middle")
    if allocated < columns:
        bx = x0 + w * allocated / columns
        s.text((bx + x0 + w) / 2, y0 + h / 2 + 4, f"{columns - allocated} columns not allocated", "ts", anchor="middle")
        s.bracket(x0, y0 - 12, bx, y0 - 12)
        s.text((x0 + bx) / 2, y0 - 20, f"allocated: {allocated} columns", "ts", anchor="middle")
    for q in range(4):
        y = y0 + h * q / 4
        if q:
            s.line(x0, y, x0 + w * allocated / columns, y, "ln dash thin")
        s.text(x0 - 10, y + h / 8 - 2, f"warp {q}", "tb", anchor="end")
        s.text(x0 - 10, y + h / 8 + 15, f"{32 * q}–{32 * q + 31}", "ts", anchor="end")
    for c in range(0, columns + 1, 128):
        x = x0 + w * c / columns
        s.line(x, y0 + h, x, y0 + h + 5)
        s.text(x, y0 + h + 20, c, "ts", anchor="middle")
    s.text(x0 - 10, y0 + h + 20, "column", "ts", anchor="end")
    return s


def grid_map(stage: Any = 1, batch: int = 1, heads: int = 2, seqlen: int = 512, *, chosen: int | None = None) -> Svg:
    """Which CTA computes what: one cell for each, by batch, head and Q tile.

    Args:
        chosen: linear CTA index to explain; default: one in the middle.
    """
    module = _module(stage)
    number = stage_number(stage)
    tile_m, tile_n = module.TILE_M, module.TILE_N
    tiles, kv = seqlen // tile_m, -(-seqlen // tile_n)
    count = tiles * heads * batch
    pick = count // 2 + (1 if count > 2 else 0) if chosen is None else chosen
    if not 0 <= pick < count:
        raise ValueError(f"chosen = {pick}: the grid has CTAs 0 to {count - 1}")
    pq, ph, pb = pick % tiles, pick // tiles % heads, pick // (tiles * heads)
    rows = batch * heads
    x0, y0, w = 130.0, 54.0, 618.0
    ch = min(40.0, max(16.0, 300.0 / rows))
    cw = w / tiles
    labels = cw >= 30 and ch >= 15
    gap = 10.0
    height = y0 + rows * ch + (batch - 1) * gap + 66
    load = (
        f"there are {count / B200.sms:.1f} CTAs for each"
        if count >= B200.sms
        else "most of them have nothing to do at this size"
    )
    s = Svg(
        760,
        height,
        title=f"Stage {number}: the grid of CTAs",
        name="grid_map",
        desc=(
            f"Grid of {tiles} Q tiles by {heads} heads by {batch} batches = {count} CTAs. CTA {pick} computes batch "
            f"{pb}, head {ph}, rows "
            f"{pq * tile_m} to {pq * tile_m + tile_m - 1}."
        ),
        caption=(
            f"{batch} batch{'es' if batch > 1 else ''}, {heads} heads, {seqlen:,} tokens: {count} CTAs, one for "
            f"every {tile_m} query rows of a head. CTA {pick} keeps "
            f"its Q tile and walks over all {kv} KV tiles of head {ph}; no CTA waits for another. A {B200.name} has "
            f"{B200.sms:.0f} SMs, so {load}."
        ),
        source=f"grid = (seqlen / {tile_m}, heads, batch), as stage {number} launches it",
    )
    s.text(x0, 20, "Q tile: blockIdx.x", "ts")
    for i in range(tiles):
        if cw >= 34 or i % max(1, round(40 / cw)) == 0:
            s.text(x0 + cw * (i + 0.5), y0 - 8, i, "ts", anchor="middle")
    for b in range(batch):
        for hd in range(heads):
            r = b * heads + hd
            y = y0 + r * ch + b * gap
            here = b == pb and hd == ph
            if ch >= 16 or hd == 0:
                s.text(x0 - 10, y + ch / 2 + 4.5, f"batch {b}, head {hd}", "tb" if here else "ts", anchor="end")
            for t in range(tiles):
                n = (b * heads + hd) * tiles + t
                on = n == pick
                cls = "r-softmax" if on else ("t-reg" if here else "off")
                s.rect(x0 + cw * t, y, cw, ch, f"cell {cls}")
                if labels:
                    s.text(x0 + cw * (t + 0.5), y + ch / 2 + 4.5, n, "tb on" if on else "ts", anchor="middle")
    y = y0 + rows * ch + (batch - 1) * gap + 26
    s.text(x0, y, f"CTA {pick}: batch {pb}, head {ph}, query rows {pq * tile_m:,}–{pq * tile_m + tile_m - 1:,}", "tb")
    s.text(
        x0,
        y + 20,
        f"reads K and V of that head: {kv} tiles of {tile_n} keys, {human_bytes(2 * 2 * seqlen * module.HEAD_DIM)}",
        "t",
    )
    return s


def dataflow(stage: Any = 1) -> Svg:
    """Q, K, V, S, P and O through HBM, shared memory, TMEM and registers, with the bytes of one tile."""
    module = _module(stage)
    number = stage_number(stage)
    m, n, d = module.TILE_M, module.TILE_N, module.HEAD_DIM
    chunk = getattr(module, "CHUNK", n)
    q, kv, st, p, o = 2 * m * d, 2 * n * d, 4 * m * n, 2 * m * n, 4 * m * d
    in_smem = "P" in module.SMEM or "P" in getattr(module, "SMEM_ALIASES", {})
    alias = getattr(module, "SMEM_ALIASES", {}).get("P")
    s = Svg(
        760,
        470,
        title=f"Stage {number}: where the data of one tile goes",
        name="dataflow",
        desc=(
            f"Q, K and V go from HBM to shared memory by TMA, {human_bytes(q)} each. Q K transposed goes to S in "
            f"TMEM, {human_bytes(st)}. Threads read "
            f"S into registers twice and write P, {human_bytes(p)}, to {'shared memory' if in_smem else 'TMEM'}. P V "
            f"is added to O in TMEM, {human_bytes(o)}. Registers "
            "rescale O and at the end write it to HBM."
        ),
        caption=(
            f"One Q tile against one KV tile in stage {number}. Follow the colours: TMA loads (blue) fill shared "
            f"memory, MMAs (vermilion) read it and "
            "write TMEM, softmax (green) passes through registers, the rescale (magenta) takes O out of TMEM and "
            "puts it back, the epilogue (gold) "
            f"writes O to HBM once. S crosses from TMEM to registers twice, and P goes all the way "
            f"{'back to shared memory' if in_smem else 'to TMEM'}."
        ),
        source=f"tile sizes and places from the facts of stage {number}",
    )
    bands = [("hbm", "HBM", 30), ("smem", "shared memory", 148), ("tmem", "TMEM", 270), ("reg", "registers", 392)]
    bh = 62
    for key, name, y in bands:
        s.rect(8, y, 744, bh, f"t-{key}", rx=6)
        s.text(20, y + 24, name, "tb")

    def box(
        x: float, y: float, w: float, name: str, bytes_: int, cls: str, *, dash: bool = False, note: str = ""
    ) -> None:
        s.rect(x, y + 7, w, bh - 14, f"paper {cls}" if not dash else f"paper {cls} dash", rx=4)
        s.text(x + w / 2, y + 28, name, "tl", anchor="middle")
        s.text(x + w / 2, y + 46, note or human_bytes(bytes_), "ts", anchor="middle")

    hb, sm, tm, rg = (y for _, _, y in bands)
    bw = 66
    xq, xk, xv = 150, 228, 306
    for x, name, size in ((xq, "Q", q), (xk, "K", kv), (xv, "V", kv)):
        box(x, hb, bw, name, size, "e-hbm")
        box(x, sm, bw, name, size, "e-smem")
        s.arrow([(x + bw / 2, hb + bh - 6), (x + bw / 2, sm + 6)], "r-load", width=2)
    s.text(xv + bw / 2 + 10, (hb + bh + sm) / 2 + 4, "TMA", "tb r-load")
    # S = Q K^T
    xs = 189
    box(xs, tm, bw, "S", st, "e-tmem")
    s.arrow([(xq + bw / 2, sm + bh - 6), (xs + 22, tm + 6)], "r-mma", width=2)
    s.arrow([(xk + bw / 2, sm + bh - 6), (xs + bw - 22, tm + 6)], "r-mma", width=2)
    s.text(xk + bw / 2 + 4, (sm + bh + tm) / 2 + 8, "QKᵀ", "tb r-mma")
    # softmax
    xp = 392
    box(xs - 16, rg, bw + 32, "S row", 0, "e-reg", note=f"{4 * chunk} B at a time")
    s.arrow([(xs + 22, tm + bh - 6), (xs + 22, rg + 6)], "r-softmax", width=2)
    s.arrow([(xs + bw - 22, tm + bh - 6), (xs + bw - 22, rg + 6)], "r-softmax", width=2)
    s.text(xs + bw + 2, (tm + bh + rg) / 2 + 5, "read twice: max, exp", "tb r-softmax")
    box(xp - 16, rg, bw + 32, "P row", 0, "e-reg", note=f"{2 * chunk} B at a time")
    s.arrow([(xs + bw + 16, rg + bh / 2), (xp - 16, rg + bh / 2)], "r-softmax", width=2)
    s.text((xs + bw + xp) / 2, rg + bh / 2 - 8, "exp", "tb", anchor="middle")
    target = sm if in_smem else tm
    box(xp, target, bw, "P", p, "e-smem" if in_smem else "e-tmem", dash=alias is not None)
    s.arrow([(xp + bw / 2, rg + 6), (xp + bw / 2, target + bh - 6)], "r-softmax", width=2)
    if alias:
        s.text(xp + bw / 2, target - 6, f"where {alias} was", "ts", anchor="middle")
    # O += P V
    xo = 500
    box(xo, tm, bw, "O", o, "e-tmem")
    s.arrow(
        [(xv + bw / 2, sm + bh - 6), (xv + bw / 2, tm - 14), (xo + 14, tm - 14), (xo + 14, tm + 6)], "r-mma", width=2
    )
    if in_smem:
        s.arrow([(xp + bw - 1, sm + bh - 20), (xo + 36, sm + bh - 20), (xo + 36, tm + 6)], "r-mma", width=2)
    else:
        s.arrow([(xp + bw, tm + bh / 2), (xo - 1, tm + bh / 2)], "r-mma", width=2)
    s.text(xo + 44, (sm + bh + tm) / 2 + 8, "PV, added", "tb r-mma")
    # rescale and epilogue
    box(xo - 16, rg, bw + 32, "O row", 0, "e-reg", note=f"{4 * chunk} B at a time")
    s.arrow([(xo + 20, tm + bh - 6), (xo + 20, rg + 6)], "r-correction", width=2)
    s.arrow([(xo + 46, rg + 6), (xo + 46, tm + bh - 6)], "r-correction", width=2)
    s.text(xo + 70, (tm + bh + rg) / 2 + 5, "rescale", "tb r-correction")
    xe = 668
    box(xe, hb, bw, "O", 2 * m * d, "e-hbm")
    s.arrow(
        [(xo + bw + 16, rg + bh / 2), (xe + bw / 2, rg + bh / 2), (xe + bw / 2, hb + bh - 6)], "r-epilogue", width=2
    )
    s.text(xe + bw / 2 - 8, tm + 36, "epilogue, once", "tb", anchor="end")
    return s
