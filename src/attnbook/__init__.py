"""attnbook: the kernels, runs and figures of the book "Attention, Cycle by Cycle".

    attnbook.attention(q, k, v)             attention on the machine that is there
    attnbook.run("baseline", seqlen=512)    one stage on one input, checked: a Result
    attnbook.compile("baseline")            PTX, CUBIN, SASS, registers: a Compiled
    attnbook.ladder                         the stages: ladder[1], ladder["baseline"], for stage in ladder

Each of the four is fetched when it is first used, so that `import attnbook` and `attnbook --help` load neither
PyTorch nor CuTe-DSL. The modules behind them have the same names (`from attnbook.run import Result`); the package's
attributes are the functions. The other modules (`attnbook.figures`, `attnbook.machine`, ...) are fetched by name too.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attnbook.attention import attention
    from attnbook.compile import compile
    from attnbook.ladder import LADDER as ladder
    from attnbook.run import run

__all__ = ["__version__", "attention", "compile", "ladder", "run"]

__version__ = "0.1.0"

_MODULES = frozenset(
    {"chips", "exercises", "figures", "inputs", "machine", "mutate", "reference", "results", "widgets"}
)


def __getattr__(name: str) -> ModuleType:
    if name not in _MODULES:
        raise AttributeError(f"module 'attnbook' has no attribute {name!r}")
    return importlib.import_module(f"attnbook.{name}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


def _from_module(module: str, name: str) -> property:
    """The package's attribute that is `name` of a submodule, under the submodule's own name.

    A property, because importing a submodule sets the attribute to the module: the setter lets that pass by.
    """

    def get(self: ModuleType) -> Any:
        return getattr(importlib.import_module(f"attnbook.{module}"), name)

    def set_(self: ModuleType, value: Any) -> None:
        if not isinstance(value, ModuleType):
            raise AttributeError(f"attnbook.{module} cannot be replaced")

    return property(get, set_)


class _Package(ModuleType):
    attention = _from_module("attention", "attention")
    compile = _from_module("compile", "compile")
    ladder = _from_module("ladder", "LADDER")
    run = _from_module("run", "run")


sys.modules[__name__].__class__ = _Package
