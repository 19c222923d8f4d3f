"""What runs a model: one small interface, one file per runtime; others register by entry point.

A package of its own adds a backend with the entry point group `rigl_compress.backends`: the name leads to a `Backend`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Protocol

from numpy.typing import NDArray

from rigl_compress.models.errors import InputError
from rigl_compress.models.registry import Registry
from rigl_compress.pipeline.bench.sources import Source

Array = NDArray[Any]
GROUP = "rigl_compress.backends"
_OWN = ("onnxruntime", "rigl", "torch_networks", "openvino")


@dataclass(frozen=True)
class Setup:
    """How a model is to be run: its inputs, already drawn, on so many threads; providers are ONNX Runtime's."""

    inputs: Mapping[str, Array]
    threads: int = 1
    providers: tuple[str, ...] = ()


class Runner(Protocol):
    """A model that is open: inputs are in place, `run` is what is timed."""

    def run(self) -> object:
        """Compute the outputs once."""

    def outputs(self) -> list[Array]:
        """Give the outputs of the last run."""


@dataclass(frozen=True)
class Backend:
    """A runtime. `missing` says what has to be installed for it, or nothing; `open` refuses what it cannot run."""

    name: str
    summary: str
    missing: Callable[[], str]
    open: Callable[[Source, Setup], Runner]


BACKENDS: Registry[Backend] = Registry("backend")


def register_backend(backend: Backend) -> Backend:
    """Register a backend under its name."""
    return BACKENDS.register(backend.name, backend)


@cache
def _load_all() -> None:
    for module in _OWN:
        import_module(f"{__name__}.{module}")
    for entry in entry_points(group=GROUP):
        found = entry.load()
        if isinstance(found, Backend) and found.name not in BACKENDS:
            register_backend(found)


def all_backends() -> Registry[Backend]:
    """Give the registry with every backend loaded, those of other packages too."""
    _load_all()
    return BACKENDS


def usable_backend(name: str) -> Backend:
    """Give a backend, or say what to install for it."""
    backend = all_backends()[name]
    if reason := backend.missing():
        raise InputError(f"backend {name!r} cannot be used here: {reason}")
    return backend


def needs(module: str, cure: str) -> Callable[[], str]:
    """Give the check for a module that may not be installed.

    >>> needs("math", "")(), needs("no_such_thing", "pip install it")()
    ('', 'no_such_thing is not installed: pip install it')
    """
    return lambda: "" if find_spec(module) else f"{module} is not installed: {cure}"
