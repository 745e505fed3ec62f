"""Run what ``cute.compile`` returned. The one module of ptxemu that deals with the CuTe DSL's objects.

The DSL is used as it is. A compiled object is asked for three things, all of which it hands out to any caller: the PTX
text, the printed module of its host function, and, for the arguments of a call, pointers to their values. The host
function is then interpreted (`ptxemu.host`) and every kernel that it launches runs on the emulated machine.

PTX is there only if the compiler was told to keep it, and names of Python source lines only with line information::

    compiled = cute.compile(fn, *args, options="--keep-ptx --generate-line-info --dump-dir /existing/directory")

(The compiler also writes the text as a file, into the current directory unless ``--dump-dir`` names another one.)
"""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ptxemu import ptx as ptx_module
from ptxemu.config import Config, Run
from ptxemu.errors import MemoryFault
from ptxemu.host import Device, HostError, HostModule, KernelFacts, Launch
from ptxemu.machine import Allocation, launch_module

__all__ = ["OPTIONS", "arguments_of", "launch", "launch_record"]

OPTIONS = "--keep-ptx --generate-line-info"
_TEXTS_KEPT = 8  # parsed PTX texts kept for one compiled object: its own, and edited ones


@dataclass
class _Prepared:
    """What is worked out once for a compiled object."""

    host: HostModule
    function: str
    modules: dict[str, ptx_module.Module] = field(default_factory=dict)
    facts: dict[str, dict[str, KernelFacts]] = field(default_factory=dict)


_prepared: weakref.WeakKeyDictionary[Any, _Prepared] = weakref.WeakKeyDictionary()
_lock = threading.RLock()  # a host module has one stack; a notebook may launch from several threads


def ptx_of(compiled: Any) -> str:
    """The PTX text that a compiled object holds; HostError with the remedy where it holds none."""
    text = getattr(compiled, "__ptx__", None)
    if not text:
        raise HostError(
            "the compiled object has kept no PTX. Compile with "
            f'cute.compile(fn, *args, options="{OPTIONS}"), or set CUTE_DSL_KEEP=ptx before cutlass is imported.'
        )
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    if ".version" not in text and "\n" not in text.strip():
        raise HostError(
            f"instead of PTX the compiled object has the path {text!r}, to which nothing was written: the directory "
            "did not exist. Create it (or name another with --dump-dir or CUTE_DSL_DUMP_DIR) before compiling."
        )
    return text


def _host_text(compiled: Any) -> str:
    module = getattr(compiled, "ir_module", None)
    if module is None:
        raise HostError(
            f"{type(compiled).__name__} carries no host module. ptxemu runs what cute.compile returned in this "
            "process; an object loaded from a file or a cache has only machine code: compile it here."
        )
    text = str(module)
    if "llvm.func" not in text:
        raise HostError(f"the host module of this {type(compiled).__name__} is not in the LLVM dialect")
    return text


def _facts(module: ptx_module.Module) -> dict[str, KernelFacts]:
    """What the host side must know of every kernel of a PTX module."""
    shared = {name: v.size for name, v in module.variables.items() if v.space == "shared" and not v.extern}
    found = {}
    for name, entry in module.entries.items():
        static = sum(v.size for v in entry.variables.values() if v.space == "shared" and not v.extern)
        static += sum(size for variable, size in shared.items() if any(variable in ins.text for ins in entry.code))
        found[name] = KernelFacts(tuple(param.size for param in entry.params.values()), static)
    return found


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Parsing makes many small objects and no garbage: a full collection over all of the compiler's objects meanwhile
    would take longer than the parsing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@_collector_paused()
def _prepare(compiled: Any, text: str | None) -> tuple[_Prepared, ptx_module.Module]:
    prepared = _prepared.get(compiled)
    if text is None:
        text = ptx_of(compiled)
    if prepared is None:
        host = HostModule(_host_text(compiled), {})
        prepared = _prepared[compiled] = _Prepared(host, _function_name(compiled, host))
    module = prepared.modules.get(text)
    if module is None:
        module = ptx_module.parse(text)
        while len(prepared.modules) >= _TEXTS_KEPT:
            oldest = next(iter(prepared.modules))
            del prepared.modules[oldest], prepared.facts[oldest]
        prepared.modules[text], prepared.facts[text] = module, _facts(module)
    prepared.host.kernels = prepared.facts[text]
    prepared.host.device = Device.of(module.target.split(",")[0].strip())
    return prepared, module


def _function_name(compiled: Any, host: HostModule) -> str:
    name = getattr(compiled, "function_name", None)
    defined = host.functions
    if name in defined:
        return name
    raise HostError(f"the host module defines no function {name!r}, only {', '.join(defined)}")


# ---------------------------------------------------------------------------------------------------- arguments


def _flat(nested: Any) -> Iterator[int]:
    if isinstance(nested, (tuple, list)):
        for item in nested:
            yield from _flat(item)
    else:
        yield int(nested)


def _extent(shape: Iterable[int], stride: Iterable[int], bits: int) -> int:
    """Bytes from the first element of a tensor to the end of its last one."""
    last = 0
    for size, step in zip(shape, stride, strict=True):
        if size == 0:
            return 0
        if step < 0:
            raise HostError(f"a tensor with the negative stride {step}: ptxemu takes tensors that grow upwards")
        last += (size - 1) * step
    return -(-(last + 1) * bits // 8)


def _buffer(value: Any) -> tuple[int, int, bool] | None:
    """(address, bytes, writable) of a tensor of any of the kinds that can be an argument; None for anything else."""
    if hasattr(value, "__array_interface__") and hasattr(value, "itemsize"):  # NumPy
        interface = value.__array_interface__
        address, read_only = interface["data"]
        strides = [step // value.itemsize for step in value.strides]
        return address, _extent(value.shape, strides, value.itemsize * 8), not read_only
    if callable(getattr(value, "data_ptr", None)) and callable(getattr(value, "element_size", None)):  # PyTorch
        if value.device.type != "cpu":
            raise HostError(
                f"a tensor on {value.device}: ptxemu takes tensors in this machine's own memory; call .cpu()"
            )
        return value.data_ptr(), _extent(value.shape, value.stride(), value.element_size() * 8), True
    if hasattr(value, "__c_pointers__") and isinstance(getattr(value, "data_ptr", None), int):  # the DSL's own
        return value.data_ptr, _extent(_flat(value.shape), _flat(value.stride), value.element_type.width), True
    return None


def _tensors(name: str, value: Any, seen: set[int], depth: int = 0) -> Iterator[tuple[str, int, int, bool]]:
    """(name, address, bytes, writable) of every tensor in an argument, looking into tuples, dicts and objects."""
    if value is None or isinstance(value, (int, float, str, bytes, type)) or id(value) in seen or depth > 6:
        return
    seen.add(id(value))
    found = _buffer(value)
    if found is not None:
        yield name, *found
        return
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        parts = [(f"{name}.{key}", getattr(value, key)) for key in value._fields]
    elif isinstance(value, (tuple, list)):
        parts = [(f"{name}[{i}]", item) for i, item in enumerate(value)]
    elif isinstance(value, dict):
        parts = [(f"{name}[{key!r}]", item) for key, item in value.items()]
    elif dataclasses.is_dataclass(value):
        parts = [(f"{name}.{item.name}", getattr(value, item.name, None)) for item in dataclasses.fields(value)]
    elif type(value).__module__.split(".")[0] not in ("cutlass", "cuda", "numpy", "torch", "builtins"):
        parts = [(f"{name}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
    else:
        return
    for part, item in parts:
        yield from _tensors(part, item, seen, depth + 1)


def _merge(found: Iterable[tuple[str, int, int, bool]]) -> list[Allocation]:
    """Allocations that do not overlap: views of one buffer (q, k, v of a packed tensor) become one with all names."""
    merged: list[list[Any]] = []
    for name, address, size, writable in sorted(found, key=lambda item: (item[1], -item[2])):
        if size == 0:
            continue
        if merged and address < merged[-1][1] + merged[-1][2]:
            last = merged[-1]
            last[0] = f"{last[0]}, {name}"
            last[2] = max(last[2], address + size - last[1])
            last[3] = last[3] or writable
        else:
            merged.append([name, address, size, writable])
    return [Allocation(name=n, address=a, nbytes=s, writable=w) for n, a, s, w in merged]


@dataclass
class Arguments:
    """The arguments of one call as the host function takes them."""

    pointers: list[int]  # for each argument of the host function, where its value lies
    allocations: list[Allocation]
    raw: list[str]  # arguments that are bare pointers, whose size nobody knows
    keep: list[Any]  # everything that must outlive the run


def arguments_of(compiled: Any, args: Sequence[Any], kwargs: dict[str, Any], buffers: Iterable[Any] = ()) -> Arguments:
    """Pointers to the values of a call's arguments, and the memory that the kernel may touch.

    buffers: further arrays that the kernel reaches through bare pointers, or a dict name -> array.
    """
    # CPU scalars are held by the pointer objects themselves: they are kept until the launch is over.
    pointers, adapted = compiled.execution_args.generate_execution_args(args, kwargs)
    addresses = [int(p.value or 0) if isinstance(p, ctypes.c_void_p) else int(p) for p in pointers]
    named = compiled.execution_args.bound_call_arguments(args, kwargs)
    found: list[tuple[str, int, int, bool]] = []
    seen: set[int] = set()
    for name, value in named.items():
        found.extend(_tensors(name, value, seen))
    extra = buffers.items() if isinstance(buffers, dict) else ((f"buffers[{i}]", b) for i, b in enumerate(buffers))
    for name, value in extra:
        found.extend(_tensors(name, value, seen))
    raw = [name for name, value in named.items() if hasattr(value, "_pointer") and hasattr(value, "memspace")]
    return Arguments(addresses, _merge(found), raw, [pointers, adapted, args, kwargs, buffers])


# ---------------------------------------------------------------------------------------------------- launching


def launch_record(
    compiled: Any, *args: Any, ptx: str | None = None, buffers: Iterable[Any] = (), **kwargs: Any
) -> list[Launch]:
    """What a call of the compiled object would launch, in order: shapes, shared memory and bytes of every parameter."""
    with _lock:
        prepared, _ = _prepare(compiled, ptx)
        return _record(prepared, arguments_of(compiled, args, kwargs, buffers))


def _record(prepared: _Prepared, bound: Arguments) -> list[Launch]:
    return prepared.host.run(prepared.function, bound.pointers, [(a.address, a.nbytes) for a in bound.allocations])


def launch(
    compiled: Any,
    *args: Any,
    config: Config | None = None,
    ptx: str | None = None,
    buffers: Iterable[Any] = (),
    **kwargs: Any,
) -> Run:
    """Run a compiled object on the emulated machine; its tensors are read and written where they lie.

    compiled: what ``cute.compile`` returned, compiled with ``options="--keep-ptx"`` (and ``--generate-line-info`` for
    source lines in messages). args, kwargs: those of the call on a GPU, with tensors in CPU memory; a stream argument
    may be ``cuda.CUstream(0)``. ptx: an edited PTX text to run instead of the object's own, with the same kernels and
    parameters. buffers: arrays that the kernel reaches through bare pointers (``make_ptr``), whose extent no one could
    know otherwise; a sequence, or a dict name -> array.

    Where the host function launches several kernels they run one after another; the Run is then the sum, and its
    ``runs`` lists them. Raises HostError for what cannot be launched and the errors of `ptxemu.errors` for what goes
    wrong in a kernel.
    """
    with _lock:
        prepared, module = _prepare(compiled, ptx)
        bound = arguments_of(compiled, args, kwargs, buffers)
        records = _record(prepared, bound)
    if not records:
        raise HostError(f"the host function {prepared.function!r} launched no kernel for these arguments")
    runs = []
    for record in records:
        try:
            run = launch_module(
                module,
                record.kernel,
                grid=record.grid,
                block=record.block,
                cluster=record.cluster,
                shared=record.shared,
                params=record.params,
                allocations=bound.allocations,
                config=config,
                keep=bound.keep,
            )
        except MemoryFault as fault:
            if bound.raw:
                fault.add_note(
                    f"argument {', '.join(bound.raw)} is a bare pointer, whose extent is unknown: name the array that "
                    "it points into, as in launch(..., buffers=[array])"
                )
            raise
        runs.append(run)
    return _combine(runs)


def _combine(runs: list[Run]) -> Run:
    """Several launches as one Run: counts and findings summed, events in order, the shape of the last launch."""
    if len(runs) == 1:
        return runs[0]
    total = dataclasses.replace(
        runs[-1], instructions=Counter(), events=[], findings=[], bank_conflicts={}, seconds=0.0, ticks=0, runs=runs
    )
    for run in runs:
        total.instructions.update(run.instructions)
        total.events.extend(dataclasses.replace(event, t=event.t + total.ticks) for event in run.events)
        total.findings.extend(run.findings)
        for line, conflicts in run.bank_conflicts.items():
            if line in total.bank_conflicts:  # the same kernel again
                mine = total.bank_conflicts[line]
                mine.accesses += conflicts.accesses
                mine.wavefronts += conflicts.wavefronts
                mine.ideal += conflicts.ideal
            else:
                total.bank_conflicts[line] = dataclasses.replace(conflicts)
        total.seconds += run.seconds
        total.ticks += run.ticks
    return total
