"""What the checked driver (`Config(races=True)`) has to say: a `Finding` names two accesses and the edge between them
that is missing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

KINDS = {
    "race": "two accesses to the same bytes or cells, one of them a write, with nothing that orders them",
    "proxy": "ordered, but the first went through the generic proxy and the second goes through the async proxy, with"
    " no fence.proxy.async between them (PTX ISA 8.6 Proxies, 9.7.9.25.2 Async Proxy)",
    "completion": "the first access is asynchronous and nobody waited for its end (tcgen05.wait, tcgen05.commit,"
    " wait_group, an mbarrier)",
    "register": "a register that an asynchronous instruction writes or reads is used before that instruction is done",
    "uninitialised": "a read of shared memory or tensor memory that nobody has written",
    "barrier": "an mbarrier used against its rules: not initialised for whoever uses it, initialised again in use",
    "lap": "a phase of an mbarrier was over before a warp that waits for its parity had seen the one before",
    "pending": "a kernel has ended with arrivals or bytes still pending on an mbarrier that somebody had begun to use",
}


@dataclass(slots=True, frozen=True)
class Access:
    """One side of a finding.

    what: in words, such as "st.shared" or "TMA load".  cta: linear index in the grid.  warp, lane: who issued it; lane
    is None where the whole warp did.  ptx_line, source: where ("s01_baseline.py:210", None without line information).
    space: "shared", "tmem", "global", "register" or "mbarrier".
    range: the part that both sides touch: (first, end) bytes from the start of the CTA's shared memory, byte offsets
    in the buffer `name` (global), or (first lane, end, first column, end) of TMEM.
    write: it writes.  proxy: "generic", "async" or "tcgen05".
    """

    what: str
    cta: int
    warp: int
    lane: int | None
    ptx_line: int
    source: str | None
    space: str
    range: tuple[int, ...]
    write: bool
    proxy: str
    name: str = ""

    @property
    def place(self) -> str:
        """The source line where known, else the PTX line."""
        return self.source or f"PTX line {self.ptx_line}"

    @property
    def where(self) -> str:
        """Bytes or cells, in words."""
        if self.space == "tmem":
            lane, lanes, column, columns = self.range
            return f"TMEM lanes {lane}-{lanes - 1}, columns {column}-{columns - 1}"
        if self.space == "register":
            return self.name
        first, end = self.range[:2]
        if self.space == "global":
            return f"bytes {first}-{end - 1} of {self.name}"
        return f"{self.space} bytes [{first:#x}, {end:#x})"

    def __str__(self) -> str:
        lane = "" if self.lane is None else f", lane {self.lane}"
        line = f"PTX line {self.ptx_line}" + (f", {PurePath(self.source).name}" if self.source else "")
        return f"{self.what} of CTA {self.cta}, warp {self.warp}{lane} ({line})"


@dataclass(slots=True)
class Finding:
    """One thing that is wrong, or not promised by the ISA, in a kernel.

    kind: a key of `KINDS`.  message: the whole story in plain words.  first, second: the two accesses in the order in
    which they happened here; a finding about one instruction has no first.  missing: the edge that is not there, such
    as "fence.proxy.async".  count: how often the same pair of lines was seen.  strict: only by the letter of the ISA,
    reported under `Config(strict=True)`.
    """

    kind: str
    message: str
    first: Access | None = None
    second: Access | None = None
    missing: str = ""
    count: int = 1
    strict: bool = False

    @property
    def key(self) -> tuple[Any, ...]:
        """Findings with the same key are one."""
        first = (self.first.place, self.first.what) if self.first else None
        second = (self.second.place, self.second.what) if self.second else None
        return self.kind, first, second, self.missing

    @property
    def lines(self) -> tuple[int, ...]:
        """PTX lines of the accesses, first to second."""
        return tuple(a.ptx_line for a in (self.first, self.second) if a is not None)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""

        def side(a: Access | None) -> dict[str, Any] | None:
            return None if a is None else {name: getattr(a, name) for name in Access.__dataclass_fields__}

        return {
            "kind": self.kind,
            "message": self.message,
            "missing": self.missing,
            "count": self.count,
            "strict": self.strict,
            "first": side(self.first),
            "second": side(self.second),
        }

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{self.kind}: {self.message}{times}"
