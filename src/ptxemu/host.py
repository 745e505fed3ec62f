"""The host function of a compiled object -> what it would launch.

``cute.compile`` returns, beside the kernel, a host function in MLIR's LLVM dialect. It works out grid and block from
the shapes, writes TMA descriptors, gathers kernel parameters and calls the CUDA runtime. `HostModule` reads the printed
text of that module and interprets the function over this process's memory: every call of the runtime that launches a
kernel becomes a `Launch` record. Nothing is executed natively and nothing is replaced.

The runtime's functions are told apart by name, as CUDA's runtime API documents them; one that is not known is an error.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ptxemu.hostops import Block, Code, Cursor, Decoder, HostError, constant, format_c
from ptxemu.hosttypes import Type, packer, parse_type, reader

__all__ = ["Device", "HostError", "HostModule", "KernelFacts", "Launch"]

# cudaLaunchAttributeID and cudaDeviceAttr, as far as host functions use them.
_COOPERATIVE, _CLUSTER_DIMENSION, _PROGRAMMATIC_SERIALIZATION = 2, 4, 6
_MAX_DYNAMIC_SHARED, _NON_PORTABLE_CLUSTER = 8, 14
_ATTRIBUTES_UNDERSTOOD = {
    0: "ignore",
    1: "accessPolicyWindow",
    _COOPERATIVE: "cooperative",
    3: "synchronizationPolicy",
    _CLUSTER_DIMENSION: "clusterDimension",
    5: "clusterSchedulingPolicyPreference",
    _PROGRAMMATIC_SERIALIZATION: "programmaticStreamSerialization",
    8: "priority",
    9: "memSyncDomainMap",
    10: "memSyncDomain",
    14: "preferredSharedMemoryCarveout",
}
# KiB of shared memory that one CTA can have (programming guide, technical specifications by compute capability).
_SHARED_KIB = {(8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (11, 0): 227, (12, 0): 99}
_PROCESSORS = {(9, 0): 132, (10, 0): 148}  # SMs of an H100 or H200 (SXM) and of a B200
_CONFIG_SIZE = 56  # grid 12, block 12, dynamic shared memory 8, stream 8, attributes 8, number of attributes 4, padding
_ATTRIBUTE_SIZE = 72  # id 4, padding 4, value 64
_MAX_BLOCKS = 10_000_000  # basic blocks run in one call: a host function that does more does not end


@dataclass(frozen=True)
class KernelFacts:
    """What the host side must know of a kernel: bytes of each ``.param`` in order, static shared memory in bytes."""

    params: tuple[int, ...]
    static_shared: int = 0


@dataclass(frozen=True)
class Device:
    """The device that the host function is told it has: its compute capability, and cudaDeviceAttr number -> value."""

    capability: tuple[int, int] = (10, 0)
    attributes: Mapping[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, target: str) -> Device:
        """The device for a PTX ``.target`` such as ``sm_100a``; limits from the CUDA programming guide's table."""
        match = re.fullmatch(r"sm_(\d+)(\d)[af]?", target)
        if match is None:
            raise HostError(f"target {target!r} is none of the form sm_100a")
        capability = int(match[1]), int(match[2])
        most_kib = _SHARED_KIB.get(capability) or _SHARED_KIB.get((capability[0], 0))
        if most_kib is None:
            raise HostError(f"no device limits known for {target!r}: ptxemu knows compute capability 8.0 to 12.x")
        values = {1: 1024, 8: 48 * 1024, 10: 32, 75: capability[0], 76: capability[1]}
        values |= {81: (most_kib + 1) * 1024, 95: 1, 97: most_kib * 1024, 111: 1024, 120: int(capability[0] >= 9)}
        if capability in _PROCESSORS:
            values[16] = _PROCESSORS[capability]
        return cls(capability, values)

    @property
    def max_dynamic_shared(self) -> int:
        """Bytes of shared memory that one CTA can have, at most."""
        return self.attributes[97]


@dataclass
class Launch:
    """One kernel launch: the kernel's name, its shape in CTAs and threads, dynamic shared memory, parameter bytes."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    shared: int
    params: list[bytes]
    stream: int = 0
    attributes: dict[str, bytes] = field(default_factory=dict)

    @property
    def cooperative(self) -> bool:
        return any(self.attributes.get("cooperative", b""))

    @property
    def programmatic(self) -> bool:
        """Launched with programmatic stream serialization: it may start before the launch before it has ended."""
        return any(self.attributes.get("programmaticStreamSerialization", b""))


class HostMemory:
    """The memory that a host function may touch: its stack, its globals, and buffers that it was given.

    Addresses are real addresses of this process, since the kernel's parameters hold pointers into it. An access to
    anything else raises `HostError` where a native program would crash.
    """

    def __init__(self, stack: int = 1 << 17) -> None:
        self._stack_bytes = stack
        self._regions: list[tuple[int, int, memoryview]] = []  # first address, end, bytes
        self._keep: list[object] = []
        self._base, self._view = self._new(stack)
        self._top, self._end = self._base, self._base + stack
        self._given: list[tuple[int, int]] = []

    def _new(self, size: int) -> tuple[int, memoryview]:
        buffer = (ctypes.c_char * (size + 256))()
        self._keep.append(buffer)
        base = -(-ctypes.addressof(buffer) // 256) * 256
        skip = base - ctypes.addressof(buffer)
        view = memoryview(buffer).cast("B")[skip : skip + size]
        return base, view

    def allocate_global(self, size: int) -> int:
        """Bytes that live as long as the module; their address."""
        base, view = self._new(max(size, 1))
        self._regions.append((base, base + len(view), view))
        return base

    def allocate(self, size: int, alignment: int) -> int:
        """Stack space, zeroed (a native stack is not; reading it before writing is undefined there)."""
        address = -(-self._top // alignment) * alignment
        if address + size > self._end:
            if size > self._stack_bytes:
                raise HostError(f"the host function wants {size} bytes on its stack; it has {self._stack_bytes}")
            raise HostError(
                f"the host function needs more than {self._stack_bytes} bytes of stack: an alloca in an endless loop?"
            )
        self._top = address + size
        start = address - self._base
        self._view[start : start + size] = bytes(size)
        return address

    def mark(self) -> int:
        return self._top

    def release(self, mark: int) -> None:
        self._top = mark

    def give(self, buffers: Iterable[tuple[int, int]]) -> None:
        """Set the (address, bytes) of arguments that the host function may read or write."""
        self._given = list(buffers)

    def find(self, address: int, size: int, at: str = "") -> tuple[memoryview, int]:
        """The buffer and the offset in it where ``size`` bytes at ``address`` lie; HostError where none holds them."""
        offset = address - self._base
        if offset >= 0 and offset + size <= self._top - self._base:
            return self._view, offset
        for first, end, view in self._regions:
            if first <= address and address + size <= end:
                return view, address - first
        for first, length in self._given:
            if first <= address and address + size <= first + length:
                return memoryview((ctypes.c_char * length).from_address(first)).cast("B"), address - first
        raise HostError(
            f"{at}\nthe host function touches {size} bytes at {address:#x}, which is neither its own memory nor that "
            "of a tensor argument" + (" (a null pointer)" if address < 4096 else "")
        )

    def read(self, address: int, size: int, at: str = "") -> bytes:
        view, offset = self.find(address, size, at)
        return bytes(view[offset : offset + size])

    def write(self, address: int, data: bytes, at: str = "") -> None:
        view, offset = self.find(address, len(data), at)
        view[offset : offset + len(data)] = data

    def text(self, address: int, at: str = "") -> bytes:
        """The C string at an address, without its final zero."""
        view, offset = self.find(address, 1, at)
        end = offset
        while end < len(view) and view[end]:
            end += 1
        return bytes(view[offset:end])


_GLOBAL = re.compile(r'  llvm\.mlir\.global (?:\w+ )*?(?:@"(?:[^"\\]|\\.)*"|@[\w$.]+)\(')
_POINTER_SIZE = 8


class HostModule:
    """A printed module, decoded function by function when first called.

    text: ``str(compiled.ir_module)``. kernels: facts of every kernel that it may launch, by the name that the kernel's
    ``.entry`` has in the PTX. device: what the runtime's device queries answer.
    """

    def __init__(self, text: str, kernels: Mapping[str, KernelFacts], device: Device | None = None) -> None:
        self.kernels = dict(kernels)
        self.device = device or Device.of("sm_100a")
        self.memory = HostMemory()
        self.printed: list[str] = []
        self.kernel_attributes: dict[str, dict[int, int]] = {}
        self._lines = text.splitlines()
        self._functions: dict[str, int] = {}
        self._globals: dict[str, int] = {}
        self._addresses: dict[str, int] = {}
        self._code: dict[str, Code] = {}
        self._handles: dict[int, str] = {}
        self._launches: list[Launch] = []
        self._loaded = False
        for number, line in enumerate(self._lines):
            if line.startswith("  llvm.func"):
                self._functions[self._symbol(line, number)] = number
            elif line.startswith("  llvm.mlir.global"):
                self._globals[self._symbol(line, number)] = number

    def _symbol(self, line: str, number: int) -> str:
        try:
            return Cursor(line, line.index("@")).symbol()
        except ValueError as error:
            raise HostError(f"host module, line {number + 1}: {error}: {line.strip()[:120]}") from error

    @property
    def functions(self) -> list[str]:
        """Names of the functions that the module defines (not merely declares)."""
        return [name for name, at in self._functions.items() if self._lines[at].endswith("{")]

    # ------------------------------------------------------------------------------------------ globals

    def address_of(self, symbol: str) -> int:
        """The address of a global, which is made on first use; HostError for one whose start value is not plain."""
        if symbol in self._addresses:
            return self._addresses[symbol]
        number = self._globals.get(symbol)
        if number is None:
            raise HostError(f"the address of {symbol!r} is asked for, but the module has no global of that name")
        line = self._lines[number]
        if line.endswith("{"):
            raise HostError(f"host module, line {number + 1}: global {symbol!r} is initialised by code")
        match = _GLOBAL.match(line)
        if match is None:
            raise HostError(f"host module, line {number + 1}: global not understood: {line.strip()[:120]}")
        cursor = Cursor(line, match.end())
        try:
            image = self._initial(cursor)
        except ValueError as error:
            raise HostError(f"host module, line {number + 1}: {error}: {line.strip()[:120]}") from error
        address = self._addresses[symbol] = self.memory.allocate_global(len(image))
        self.memory.write(address, image)
        return address

    @staticmethod
    def _initial(cursor: Cursor) -> bytes:
        value: object = None
        kind: Type | None = None
        if not cursor.skip(")"):
            value, kind = constant(cursor)
            cursor.need(")")
        if isinstance(value, bytes):
            return value
        if kind is None:  # no start value: the type stands after the attributes
            kind, _ = parse_type(cursor.text, cursor.text.rindex(" : ") + 3)
        return bytes(kind.size) if value is None else packer(kind)(value)

    # ------------------------------------------------------------------------------------------ calls

    def _decoded(self, name: str) -> Code:
        code = self._code.get(name)
        if code is None:
            first = self._functions[name]
            end = first + 1
            while self._lines[end] != "  }":
                end += 1
            code = self._code[name] = Decoder(self, name, first + 1, self._lines[first:end]).decode()
        return code

    def call(self, name: str, values: Sequence[object], kinds: Sequence[Type] = (), at: str = "") -> object:
        """Call a function of the module, or one of the runtime, with values of the given types."""
        number = self._functions.get(name)
        if number is None or not self._lines[number].endswith("{"):
            function = _RUNTIME.get(name)
            if function is None:
                raise HostError(
                    f"{at}\nthe host function calls {name!r}, which ptxemu does not know. It knows "
                    f"{', '.join(sorted(_RUNTIME))}."
                )
            return function(self, at, list(zip(values, kinds, strict=True)))
        code = self._decoded(name)
        frame = code.frame.copy()
        for (slot, _), value in zip(code.arguments, values, strict=True):
            frame[slot] = value
        mark = self.memory.mark()
        block: Block | None = code.entry
        for _ in range(_MAX_BLOCKS):
            assert block is not None
            for operation in block.operations:
                operation(frame)
            if block.terminator is None:
                raise HostError(f"host function {name!r}: a block without an end")
            block = block.terminator(frame)
            if block is None:
                self.memory.release(mark)
                return frame[0]
        raise HostError(f"host function {name!r} does not end: {_MAX_BLOCKS} basic blocks were run")

    def run(self, function: str, arguments: Sequence[int], buffers: Iterable[tuple[int, int]] = ()) -> list[Launch]:
        """Interpret one host function.

        arguments: for every argument of the function the address of its value, as the compiled object's
        ``generate_execution_args`` hands them out. buffers: (address, bytes) of what the function may read besides.
        Returns the launches in order. Raises HostError, also where the function returns an error of its own.
        """
        if function not in self._functions:
            raise HostError(f"no host function {function!r}; the module defines {', '.join(self.functions)}")
        code = self._decoded(function)
        if len(arguments) != len(code.arguments):
            raise HostError(f"{function!r} takes {len(code.arguments)} arguments and was given {len(arguments)}")
        self._launches, self.printed = [], []
        self.memory.release(self.memory._base)
        self.memory.give(buffers)
        self._load()
        values = [
            reader(kind)(ctypes.string_at(address, kind.size), 0)
            for (_, kind), address in zip(code.arguments, arguments, strict=True)
        ]
        result = self.call(function, values)
        if isinstance(result, int) and result:
            said = "".join(self.printed).strip()
            raise HostError(f"host function {function!r} returned error {result}" + (f": {said}" if said else ""))
        return self._launches

    def _load(self) -> None:
        """Run the module's own loader once: it asks for every kernel's handle and sets the kernels' attributes."""
        if self._loaded:
            return
        self._loaded = True
        if "cuda_load" not in self._functions:
            return
        count = self.call("cuda_num_binaries", []) if "cuda_num_binaries" in self._functions else 1
        assert isinstance(count, int)
        libraries = self.memory.allocate_global(_POINTER_SIZE * max(count, 1))
        result = self.call("cuda_load", [libraries])
        if result:
            raise HostError(f"the compiled object's loader returned error {result}")

    # ------------------------------------------------------------------------------------------ launching

    def kernel_of(self, handle: int, at: str) -> str:
        try:
            return self._handles[handle]
        except KeyError:
            raise HostError(f"{at}\n{handle:#x} is no kernel handle that the loader obtained") from None

    def new_handle(self, name: str) -> int:
        handle = self.memory.allocate_global(1)  # an address of its own, which nothing else has
        self._handles[handle] = name
        return handle

    def launch(
        self,
        at: str,
        kernel: str,
        grid: Sequence[int],
        block: Sequence[int],
        shared: int,
        stream: int,
        params: int,
        attributes: Mapping[str, bytes],
    ) -> None:
        facts = self.kernels.get(kernel)
        if facts is None:
            raise HostError(
                f"{at}\nkernel {kernel!r} is launched, but the PTX at hand has only {', '.join(self.kernels) or 'none'}"
            )
        images = []
        for position, size in enumerate(facts.params):
            pointer = int.from_bytes(self.memory.read(params + _POINTER_SIZE * position, _POINTER_SIZE, at), "little")
            images.append(self.memory.read(pointer, size, at) if size else b"")
        cluster = (1, 1, 1)
        if "clusterDimension" in attributes:
            image = attributes["clusterDimension"]
            cluster = tuple(int.from_bytes(image[4 * i : 4 * i + 4], "little") for i in range(3))  # type: ignore[assignment]
        launch = Launch(kernel, tuple(grid), tuple(block), cluster, shared, images, stream, dict(attributes))  # type: ignore[arg-type]
        self._check(at, launch, facts)
        self._launches.append(launch)

    def _check(self, at: str, launch: Launch, facts: KernelFacts) -> None:
        """Refuse what the CUDA runtime would refuse (programming guide, table of technical specifications)."""
        grid, block, cluster = launch.grid, launch.block, launch.cluster

        def refuse(why: str) -> None:
            raise HostError(f"{at}\nCUDA would refuse to launch {launch.kernel!r}: {why}")

        for axis, (size, most) in enumerate(zip(grid, (2**31 - 1, 65535, 65535), strict=True)):
            if not 1 <= size <= most:
                refuse(f"grid {grid} has {size} along {'xyz'[axis]}, allowed are 1 to {most}")
        for axis, (size, most) in enumerate(zip(block, (1024, 1024, 64), strict=True)):
            if not 1 <= size <= most:
                refuse(f"block {block} has {size} along {'xyz'[axis]}, allowed are 1 to {most}")
        if (threads := block[0] * block[1] * block[2]) > 1024:
            refuse(f"block {block} has {threads} threads, allowed are 1024")
        if any(size < 1 for size in cluster):
            refuse(f"cluster {cluster}")
        ctas = cluster[0] * cluster[1] * cluster[2]
        set_attributes = self.kernel_attributes.get(launch.kernel, {})
        most = 16 if set_attributes.get(_NON_PORTABLE_CLUSTER) else 8
        if ctas > most:
            refuse(f"cluster {cluster} has {ctas} CTAs, allowed are {most}")
        for axis in range(3):
            if grid[axis] % cluster[axis]:
                refuse(f"grid {grid} is no multiple of cluster {cluster} along {'xyz'[axis]}")
        limit = set_attributes.get(_MAX_DYNAMIC_SHARED, 48 * 1024 - facts.static_shared)
        limit = min(limit, self.device.max_dynamic_shared - facts.static_shared)
        if launch.shared > limit:
            refuse(
                f"{launch.shared} bytes of dynamic shared memory, allowed are {limit} "
                f"({facts.static_shared} bytes are static)"
            )


# ---------------------------------------------------------------------------------------------------- the runtime

_Operands = list[tuple[object, Type]]
_RUNTIME: dict[str, Callable[[HostModule, str, _Operands], object]] = {}
_SUCCESS = 0


def _runtime(name: str, count: int) -> Callable[[Callable[..., object]], Callable[..., object]]:
    def register(function: Callable[..., object]) -> Callable[..., object]:
        def wrapped(module: HostModule, at: str, operands: _Operands) -> object:
            if len(operands) != count:
                raise HostError(f"{at}\n{name!r} takes {count} operands and is called with {len(operands)}")
            return function(module, at, *(value for value, _ in operands))

        _RUNTIME[name] = wrapped
        return function

    return register


@_runtime("_cudaGetDevice", 1)
def _get_device(module: HostModule, at: str, out: int) -> int:
    module.memory.write(out, bytes(4), at)
    return _SUCCESS


@_runtime("_cudaDeviceGetAttribute", 3)
def _device_attribute(module: HostModule, at: str, out: int, attribute: int, device: int) -> int:
    value = module.device.attributes.get(attribute)
    if value is None:
        raise HostError(
            f"{at}\nthe device attribute {attribute} (cudaDeviceAttr) is asked for; ptxemu knows "
            f"{sorted(module.device.attributes)}"
        )
    module.memory.write(out, value.to_bytes(4, "little", signed=True), at)
    return _SUCCESS


@_runtime("_cudaLibraryGetKernel", 3)
def _library_kernel(module: HostModule, at: str, out: int, library: int, name: int) -> int:
    kernel = module.memory.text(name, at).decode()
    module.memory.write(out, module.new_handle(kernel).to_bytes(8, "little"), at)
    return _SUCCESS


@_runtime("_cuKernelGetAttribute", 4)
def _kernel_attribute(module: HostModule, at: str, out: int, attribute: int, kernel: int, device: int) -> int:
    name = module.kernel_of(kernel, at)
    if attribute != 1:  # CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        raise HostError(
            f"{at}\nthe kernel attribute {attribute} (CUfunction_attribute) is asked for; ptxemu knows only 1"
        )
    facts = module.kernels.get(name)
    module.memory.write(out, (facts.static_shared if facts else 0).to_bytes(4, "little"), at)
    return _SUCCESS


def _set_attribute(module: HostModule, at: str, kernel: int, attribute: int, value: int, device: int = 0) -> int:
    module.kernel_attributes.setdefault(module.kernel_of(kernel, at), {})[attribute] = value
    return _SUCCESS


_runtime("_cudaFuncSetAttribute", 3)(_set_attribute)
_runtime("_cudaKernelSetAttributeForDevice", 4)(_set_attribute)


@_runtime("_cudaLaunchKernelEx", 3)
def _launch_ex(module: HostModule, at: str, config: int, kernel: int, params: int) -> int:
    image = module.memory.read(config, _CONFIG_SIZE, at)
    words = [int.from_bytes(image[4 * i : 4 * i + 4], "little") for i in range(6)]
    shared, stream, table = (int.from_bytes(image[i : i + 8], "little") for i in (24, 32, 40))
    attributes = {}
    for position in range(int.from_bytes(image[48:52], "little")):
        entry = module.memory.read(table + position * _ATTRIBUTE_SIZE, _ATTRIBUTE_SIZE, at)
        number = int.from_bytes(entry[:4], "little")
        name = _ATTRIBUTES_UNDERSTOOD.get(number)
        if name is None:
            raise HostError(f"{at}\nthe launch attribute {number} (cudaLaunchAttributeID) is not understood")
        attributes[name] = entry[8:]
    module.launch(at, module.kernel_of(kernel, at), words[:3], words[3:], shared, stream, params, attributes)
    return _SUCCESS


@_runtime("_cudaLaunchKernel", 10)
def _launch_plain(module: HostModule, at: str, kernel: int, *rest: int) -> int:
    params, shared, stream = rest[6:9]
    module.launch(at, module.kernel_of(kernel, at), rest[:3], rest[3:6], shared, stream, params, {})
    return _SUCCESS


def _printf(module: HostModule, at: str, operands: _Operands) -> int:
    address = operands[0][0]
    assert isinstance(address, int)
    template = module.memory.text(address, at)
    said = format_c(template, operands[1:], lambda where: module.memory.text(where, at))
    module.printed.append(said)
    print(said, end="")
    return len(said)


_RUNTIME["printf"] = _printf
