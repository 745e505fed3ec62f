"""The FP64 oracle, and the rule that says whether an answer is right.

The rule
--------
Of o: for every row (batch, head, query) the error is the length of the error vector, |o - ref|, where ref is
attention in FP64 from the 16-bit inputs as given. It may be at most the largest of

* twice that of PyTorch's own 16-bit attention (`scaled_dot_product_attention`, maths backend) in the same row,
* 2 ulp of the output type at the row's largest element,
* PyTorch's, plus what one rounding of P costs where a single key carries the row,

and on top of it what FP32 scores cannot resolve. Over all rows together the root mean square of error / allowed may be
at most 0.72. NaN must stand where the oracle has NaN, and nowhere else. A caller fills o with NaN before the kernel
runs (`poison`), so an element that was never written is a NaN that the oracle does not have.

Of lse: the absolute error may be at most twice PyTorch's, and never more than 1e-3, unless FP32 itself cannot hold
that.

Why it reads like this
----------------------
*PyTorch's error.* The maths backend converts bf16 and fp16 to fp32 first, works in fp32 and rounds the result (from
version 2.5 on, on CPU and GPU, unless reduced-precision reductions are switched on). So its error is the one rounding
that every 16-bit answer has, and "twice" leaves a kernel room for one more of that size: the one of P. This is the
strictest reading, and a useful one: a kernel that rounds P twice fails. PyTorch's answer is computed on the CPU,
always, so that the verdict does not depend on the machine. Where a row was rounded with luck, its error is taken as
what rounding costs on average, sqrt(sum_i ulp(ref_i)^2 / 12): otherwise one right row in 20,000 would fail.

*2 ulp* are for rows that PyTorch has exactly (one key has all the weight and o is a row of v), since twice nothing is
nothing. They are meant for the length of the error vector. Taken for each of its 128 elements they would be 4 times
PyTorch's largest possible error in every row, and a tile missing from the row sum at 16K would pass.

*One key that carries the row.* Roundings of P average out over many keys. Where one term p_j v_j is most of o, the
rounding of that p_j does not: up to half an ulp, for all 128 elements alike, in any kernel whose tensor core takes
16-bit P. Allowed is half an ulp times the longest p_j v_j of the row. In a row of many keys this is less than
PyTorch's error and changes nothing.

*All rows together.* Two roundings of equal size against twice one give sqrt(2) / 2 = 0.71; three give 0.87. Single
rows scatter by 6 %, the mean square of 128 rows by 2 %, so it tells two roundings from three at every size. It is
asked of 128 rows or more.

*FP32 scores.* A score is a sum of head_dim products in fp32, so it is uncertain by about u = 2^-24 · scale · |q| ·
|k_j|. For q and k of standard normal numbers that is 7e-7, and of no consequence. With both scaled by 2^6 it is 3e-3,
and where two keys compete for a row their weights move by that much, in PyTorch as in any kernel, one way or the
other by chance. The row's error from independent errors u is sqrt(sum_j p_j^2 u^2 |v_j - o|^2); 4 times that is
allowed on top.

*LSE* has no maths-backend counterpart in PyTorch, so `torch.logsumexp` of the fp32 scores stands for it, and its
error is the largest one over all rows of the call: single rows are right to the last bit by luck. FP32 itself
resolves 4 ulp of the number (scale · log2(e) and log(2) are rounded, and so are the two products with them), 2
sqrt(seqlen) · 2^-24 for the logarithm of a sum of seqlen terms added one by one, and 4 u for the scores. The sum of
the three is always allowed: 8e-6 for standard normal numbers at 512 keys. Where all scores of a row differ by less
than some roundings of that sum (8 seqlen · 2^-24), the roundings need not cancel: seqlen equal ones add up to what
the scores differ by, or to half of seqlen · 2^-24, and that is allowed too.

Wholly masked rows (causal, more queries than keys): o is 0 and lse is -inf, as in FlashAttention and in PyTorch's
softmax. Causal masks are aligned to the bottom right corner: query i sees keys up to i + seqlen_kv - seqlen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from attnbook.inputs import INPUT_FAMILIES, Family

__all__ = [
    "INPUT_FAMILIES",
    "Family",
    "Verdict",
    "attention_fp64",
    "attention_torch",
    "check",
    "poison",
    "ulp",
]

TIMES_TORCH = 2.0
ULPS = 2.0
TIMES_RESOLUTION = 4.0
TOGETHER = 0.72  # root mean square of error / allowed
TOGETHER_ROWS = 128  # asked of so many rows or more
LSE_TIMES_TORCH = 2.0
LSE_CEILING = 1e-3

_CHUNK_BYTES = 64 * 2**20  # of FP64 scores at a time


@dataclass(frozen=True)
class Verdict:
    """What `check` found. Errors of o are relative to the row's length |ref|; those of lse are absolute.

    ok            the answer is right
    reason        one sentence
    error         of the row that is worst against what it is allowed
    allowed       for that row
    torch_error   PyTorch's, in that row
    ratio         error / allowed; over 1 is a failure
    where         that row: (batch, head, query)
    rows, failed  rows checked, rows over what they are allowed (of o)
    together      root mean square of error / allowed over all rows
    lse_error, lse_allowed, lse_where   the same for the log-sum-exp; None where none was given
    """

    ok: bool
    reason: str
    error: float
    allowed: float
    torch_error: float
    ratio: float
    where: tuple[int, int, int]
    rows: int
    failed: int
    together: float
    lse_error: float | None = None
    lse_allowed: float | None = None
    lse_where: tuple[int, int, int] | None = None

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        return f"{'right' if self.ok else 'WRONG'}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists, for JSON. A NaN or infinity becomes None, which JSON has."""
        plain = asdict(self)
        for key, value in plain.items():
            if isinstance(value, float) and not math.isfinite(value):
                plain[key] = None
            elif isinstance(value, tuple):
                plain[key] = list(value)
        return plain


def poison(tensor: Tensor) -> Tensor:
    """Fill with NaN, so that an element that a kernel does not write is found. Returns the same tensor."""
    return tensor.fill_(math.nan)


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance between neighbouring numbers of `dtype` at |x|, as float64; the subnormal distance below the
    smallest normal.

    >>> ulp(torch.tensor([1.0, 1.99, 2.0]), torch.bfloat16).tolist()
    [0.0078125, 0.0078125, 0.015625]
    """
    info = torch.finfo(dtype)
    exponent = torch.floor(torch.log2(x.abs().double().clamp(min=info.tiny, max=info.max)))
    return torch.exp2(exponent) * info.eps


def attention_fp64(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention in FP64: o (batch, seqlen, heads, head_dim) and the natural-logarithm LSE (batch, heads, seqlen).

    q (batch, seqlen, heads, head_dim), k and v (batch, seqlen_kv, heads_kv, head_dim) with heads_kv a divisor of
    heads: query head h reads key head h // (heads / heads_kv). scale: 1/sqrt(head_dim) if None.
    """
    o = torch.empty(q.shape, dtype=torch.float64)
    lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float64)
    for part in _parts(q, k, v, scale, causal):
        o[part.batch, part.rows] = part.o.transpose(0, 1)
        lse[part.batch, :, part.rows] = part.lse
    return o, lse


def attention_torch(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor]:
    """PyTorch's own: o in the type of q from the maths backend, and LSE in fp32. Shapes as in `attention_fp64`."""
    o = torch.empty(q.shape, dtype=q.dtype)
    lse = torch.empty((q.shape[0], q.shape[2], q.shape[1]), dtype=torch.float32)
    for part in _parts(q, k, v, scale, causal):
        rounded, part_lse = part.torch()
        o[part.batch, part.rows] = rounded.transpose(0, 1)
        lse[part.batch, :, part.rows] = part_lse
    return o, lse


@dataclass
class _Part:
    """Some rows of one batch, all heads, with everything that the rule needs. Heads come first: (heads, rows, ...)."""

    batch: int
    rows: slice
    scale: float
    q: Tensor  # (heads, rows, head_dim), 16 bits
    k: Tensor  # (heads, seqlen_kv, head_dim), 16 bits
    v: Tensor
    mask: Tensor | None  # (rows, seqlen_kv), True where the query sees the key
    p: Tensor  # FP64 weights
    o: Tensor  # FP64
    lse: Tensor  # FP64

    def torch(self) -> tuple[Tensor, Tensor]:
        """PyTorch's o (16 bits) and LSE (fp32) of these rows."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        with sdpa_kernel(SDPBackend.MATH):
            o = torch.nn.functional.scaled_dot_product_attention(
                self.q[None], self.k[None], self.v[None], attn_mask=self.mask, scale=self.scale
            )[0]
        scores = self.q.float() @ self.k.float().transpose(-1, -2) * self.scale
        if self.mask is not None:
            scores = scores.masked_fill(~self.mask, -math.inf)
        return o, torch.logsumexp(scores, dim=-1)

    def heaviest_term(self) -> Tensor:
        """The length of the longest p_j v_j of each row, (heads, rows)."""
        return (self.p * self.v.double().norm(dim=-1)[:, None, :]).amax(-1)

    def score_spread(self) -> Tensor:
        """The largest score minus the smallest of each row, (heads, rows)."""
        seen = self.p if self.mask is None else self.p.masked_fill(~self.mask, math.inf)
        return torch.log(self.p.amax(-1)) - torch.log(seen.amin(-1))

    def score_uncertainty(self) -> Tensor:
        """u = 2^-24 · scale · |q| · |k_j| for every row and key, (heads, rows, seqlen_kv)."""
        q, k = self.q.double().norm(dim=-1), self.k.double().norm(dim=-1)
        return 2.0**-24 * abs(self.scale) * q[:, :, None] * k[:, None, :]

    def resolution(self) -> Tensor:
        """The length of the error of o from independent errors u of its scores, (heads, rows)."""
        weight = (self.p * self.score_uncertainty()).square()
        v = self.v.double()
        # |v_j - o|^2 = |v_j|^2 - 2 v_j·o + |o|^2, so that no (rows, keys, head_dim) array is needed
        square = (
            (weight @ v.square().sum(-1, keepdim=True)).squeeze(-1)
            - 2.0 * ((weight @ v) * self.o).sum(-1)
            + weight.sum(-1) * self.o.square().sum(-1)
        )
        return square.clamp(min=0.0).sqrt()


def _parts(q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Iterator[_Part]:
    """Cut the problem into pieces that fit in memory."""
    q, k, v = (x.detach().cpu() for x in (q, k, v))
    batches, seqlen, heads, head_dim = q.shape
    seqlen_kv, heads_kv = k.shape[1:3]
    if k.shape != v.shape or k.shape[0] != batches or k.shape[3] != head_dim or heads % heads_kv:
        raise ValueError(
            f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}; "
            "(batch, seqlen, heads, head_dim) with k and v alike and heads a multiple of theirs"
        )
    scale = head_dim**-0.5 if scale is None else scale
    step = max(1, _CHUNK_BYTES // (8 * heads * seqlen_kv))
    for batch in range(batches):
        k_heads, v_heads = (
            x[batch].transpose(0, 1).repeat_interleave(heads // heads_kv, dim=0).contiguous() for x in (k, v)
        )
        k64, v64 = k_heads.double(), v_heads.double()
        for first in range(0, seqlen, step):
            rows = slice(first, min(first + step, seqlen))
            q_rows = q[batch, rows].transpose(0, 1).contiguous()
            scores = q_rows.double() @ k64.transpose(-1, -2) * scale
            mask = None
            if causal:
                last_key = torch.arange(rows.start, rows.stop) + seqlen_kv - seqlen
                mask = torch.arange(seqlen_kv) <= last_key[:, None]
                scores.masked_fill_(~mask, -math.inf)
            lse = torch.logsumexp(scores, dim=-1)
            p = torch.exp(scores - lse[..., None])
            if mask is not None:  # a row that sees nothing: -inf - -inf above
                p.masked_fill_(~mask.any(-1)[:, None], 0.0)
            yield _Part(batch, rows, scale, q_rows, k_heads, v_heads, mask, p, p @ v64, lse)


def check(
    o: Tensor,
    lse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Verdict:
    """Hold an answer against the rule above.

    o: like q, same type. lse: (batch, heads, seqlen) fp32, or None to leave it out. Tensors may be on any device.
    """
    if o.shape != q.shape or o.dtype != q.dtype:
        raise ValueError(f"o is {tuple(o.shape)} {o.dtype}; it must be {tuple(q.shape)} {q.dtype} like q")
    lse_shape = (q.shape[0], q.shape[2], q.shape[1])
    if lse is not None and tuple(lse.shape) != lse_shape:
        raise ValueError(f"lse is {tuple(lse.shape)}; it must be (batch, heads, seqlen) = {lse_shape}")
    o = o.detach().cpu()
    lse = None if lse is None else lse.detach().cpu()
    rows = _RowErrors()
    log = _LseErrors()
    for part in _parts(q, k, v, scale, causal):
        torch_o, torch_lse = part.torch()
        rows.add(part, o[part.batch, part.rows].transpose(0, 1), torch_o)
        if lse is not None:
            log.add(part, lse[part.batch, :, part.rows], torch_lse)
    return _judge(rows, log if lse is not None else None)


class _RowErrors:
    """Collects the errors of o, part by part."""

    def __init__(self) -> None:
        self.error: list[Tensor] = []  # lengths, FP64
        self.allowed: list[Tensor] = []
        self.torch: list[Tensor] = []
        self.length: list[Tensor] = []
        self.index: list[Tensor] = []  # (rows, 3)
        self.nan: tuple[int, int, int, int] | None = None  # a NaN too many
        self.no_nan: tuple[int, int, int, int] | None = None  # a NaN too few

    def add(self, part: _Part, o: Tensor, torch_o: Tensor) -> None:
        largest = torch.finfo(o.dtype).max
        counted = part.o.isfinite()
        ref = torch.where(counted, part.o, 0.0)

        def error(x: Tensor) -> Tensor:
            # An answer beyond the type's range is infinite in 16 bits: compare at the end of the range.
            difference = x.double().clamp(-largest, largest) - ref.clamp(-largest, largest)
            return torch.where(counted, difference, 0.0).norm(dim=-1)

        nan_too_many, nan_too_few = o.isnan() & ~part.o.isnan(), part.o.isnan() & ~o.isnan()
        infinity_wrong = part.o.isinf() & (o.double() != part.o)
        self.nan = self.nan or _first(part, nan_too_many)
        self.no_nan = self.no_nan or _first(part, nan_too_few)
        mine = error(o)
        theirs = torch.maximum(error(torch_o), (ulp(ref, o.dtype).square() / 12.0).sum(-1).sqrt())
        mine = torch.where((nan_too_many | nan_too_few | infinity_wrong).any(-1), math.inf, mine)
        clauses = (
            TIMES_TORCH * theirs,
            ULPS * ulp(ref.abs().amax(-1), o.dtype),
            theirs + 0.5 * torch.finfo(o.dtype).eps * torch.nan_to_num(part.heaviest_term(), posinf=0.0),
        )
        allowed = torch.stack(clauses).amax(0) + TIMES_RESOLUTION * torch.nan_to_num(part.resolution(), posinf=0.0)
        self.error.append(mine.flatten())
        self.allowed.append(allowed.flatten())
        self.torch.append(theirs.flatten())
        self.length.append(ref.norm(dim=-1).flatten())
        self.index.append(_indices(part))


class _LseErrors:
    """Collects the errors of LSE, part by part."""

    def __init__(self) -> None:
        self.error: list[Tensor] = []
        self.resolution: list[Tensor] = []
        self.index: list[Tensor] = []
        self.torch = 0.0

    def add(self, part: _Part, lse: Tensor, torch_lse: Tensor) -> None:
        finite = part.lse.isfinite()
        ref = torch.where(finite, part.lse, 0.0)
        same = torch.where(part.lse.isnan(), lse.isnan(), lse.double() == part.lse)
        error = torch.where(finite, (lse.double() - ref).abs(), torch.where(same, 0.0, math.inf))
        error = torch.where(finite & lse.isnan(), math.inf, error)
        theirs = torch.where(finite, (torch_lse.double() - ref).abs(), 0.0)
        number = ulp(ref, torch.float32)
        keys = part.k.shape[1]
        total = keys**0.5 * 2.0**-24
        spread = part.score_spread()
        drift = torch.where(spread < 8.0 * keys * 2.0**-24, spread.clamp(max=0.5 * keys * 2.0**-24), 0.0)
        scores = torch.nan_to_num(part.score_uncertainty().amax(-1), posinf=0.0)
        self.error.append(error.flatten())
        self.resolution.append((4.0 * number + 2.0 * total + drift + TIMES_RESOLUTION * scores).flatten())
        self.index.append(_indices(part))
        self.torch = max(self.torch, float(theirs.max()))


def _indices(part: _Part) -> Tensor:
    """(batch, head, query) of every row of the part, in the order that flatten() gives, (rows, 3)."""
    heads, rows = part.lse.shape
    head = torch.arange(heads).repeat_interleave(rows)
    query = torch.arange(part.rows.start, part.rows.stop).repeat(heads)
    return torch.stack([torch.full_like(head, part.batch), head, query], dim=-1)


def _first(part: _Part, where: Tensor) -> tuple[int, int, int, int] | None:
    """(batch, head, query, column) of the first True."""
    if not bool(where.any()):
        return None
    head, row, column = (int(i) for i in where.nonzero()[0])
    return part.batch, head, part.rows.start + row, column


def _judge(rows: _RowErrors, log: _LseErrors | None) -> Verdict:
    error, allowed, theirs, length = (torch.cat(x) for x in (rows.error, rows.allowed, rows.torch, rows.length))
    index = torch.cat(rows.index)
    ratio = error / allowed
    worst = int(ratio.argmax())
    unit = float(length[worst]) or 1.0
    where = _where(index, worst)
    failed = int((ratio > 1.0).sum())
    together = float(ratio.square().mean().sqrt())
    reasons = []
    if rows.nan:
        reasons.append(
            f"o is NaN at (batch, head, query, column) {rows.nan} and the oracle is not: never written, or computed"
        )
    if rows.no_nan:
        reasons.append(f"o is not NaN at (batch, head, query, column) {rows.no_nan} where the oracle is")
    compared = (
        f"row error {float(error[worst]) / unit:.2e} of {float(allowed[worst]) / unit:.2e} allowed"
        f" (PyTorch {float(theirs[worst]) / unit:.2e}) at (batch, head, query) {where}"
    )
    if failed:
        reasons.append(f"{failed} of {len(error)} rows are over what they are allowed; worst: {compared}")
    elif together > TOGETHER and len(error) >= TOGETHER_ROWS:
        reasons.append(
            f"every row is within what it is allowed, all together are not: rms {together:.2f} of {TOGETHER}"
        )

    lse_error = lse_allowed = lse_where = None
    lse_words = ""
    if log is not None:
        lse_errors, resolution = torch.cat(log.error), torch.cat(log.resolution)
        ceiling = min(LSE_CEILING, LSE_TIMES_TORCH * log.torch)
        lse_limit = resolution.clamp(min=ceiling)
        lse_worst = int((lse_errors / lse_limit).argmax())
        lse_error, lse_allowed = float(lse_errors[lse_worst]), float(lse_limit[lse_worst])
        lse_where = _where(torch.cat(log.index), lse_worst)
        lse_words = f"lse error {lse_error:.1e} of {lse_allowed:.1e} allowed"
        if lse_error > lse_allowed:
            reasons.append(f"{lse_words} at (batch, head, query) {lse_where}")

    ok = not reasons
    return Verdict(
        ok=ok,
        reason="; ".join(reasons) if reasons else "; ".join(filter(None, (f"worst {compared}", lse_words))),
        error=float(error[worst]) / unit,
        allowed=float(allowed[worst]) / unit,
        torch_error=float(theirs[worst]) / unit,
        ratio=float(ratio[worst]),
        where=where,
        rows=len(error),
        failed=failed,
        together=together,
        lse_error=lse_error,
        lse_allowed=lse_allowed,
        lse_where=lse_where,
    )


def _where(index: Tensor, row: int) -> tuple[int, int, int]:
    batch, head, query = (int(i) for i in index[row])
    return batch, head, query
