"""Answers imports of GPU-only packages with inert modules, so that SGLang starts on a machine without a GPU.

On PYTHONPATH, Python imports this file by itself. Every module below one of ROOTS that is not installed becomes a
module whose attributes can be called, subscripted, used as decorators and as base classes. Nothing here computes
anything: a tiny Llama on `--device cpu` reaches none of it at run time (seen with SGLang 0.5.23).
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable, Sequence

ROOTS = frozenset({"triton", "sgl_kernel", "torchvision"})
NO_DRIVER = "0 active drivers ([]). There should only be one."  # triton's own words without a GPU; SGLang catches them


class _InertClass(type):
    def __getattr__(cls, name: str) -> object:
        return _attribute(name)


class Inert(metaclass=_InertClass):
    """Takes every use that module-level code makes of a class or an object, and does nothing."""

    def __init__(self, *_args: object, **_options: object) -> None:
        pass

    def __init_subclass__(cls, **_options: object) -> None:
        pass

    def __call__(self, *args: object, **options: object) -> object:
        bare_decorator = len(args) == 1 and not options and callable(args[0])
        return args[0] if bare_decorator else self

    def __getattr__(self, name: str) -> object:
        if name == "driver":
            raise RuntimeError(NO_DRIVER)
        if name.startswith("__"):
            raise AttributeError(name)
        return Inert()

    def __getitem__(self, _key: object) -> object:
        return Inert()

    def __class_getitem__(cls, _key: object) -> object:
        return cls


def _attribute(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (Inert,), {}) if name[:1].isupper() else Inert()


# The two that SGLang computes with at import.
ARITHMETIC: dict[str, Callable[..., int]] = {
    "cdiv": lambda dividend, divisor: -(-dividend // divisor),
    "next_power_of_2": lambda number: 1 << max(0, int(number) - 1).bit_length(),
}


class InertModule(types.ModuleType):
    """Makes each attribute at its first use and keeps it, so that a class stays the same class."""

    def __getattr__(self, name: str) -> object:
        if name == "__version__":
            return "0.0.0"
        value = ARITHMETIC.get(name) or _attribute(name)
        setattr(self, name, value)
        return value


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Offers an inert module for whatever nobody else has found below ROOTS."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in ROOTS:
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return InertModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__path__ = []


sys.meta_path.append(Finder())  # last in line: a package that is really installed wins
