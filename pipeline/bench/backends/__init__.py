"""The runtimes that `bench` times: one small interface, one file per runtime.

Another package adds a backend by `register_backend`, or by an entry point of the group `rigl_compress.backends`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from numpy.typing import NDArray

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry, instance_of
from rigl_compress.pipeline.bench.bench_sources import Source

Array = NDArray[Any]


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
        """Return the outputs of the last run."""


@dataclass(frozen=True)
class Backend:
    """A runtime. `missing` says what has to be installed for it, or nothing; `open` refuses what it cannot run."""

    name: str
    summary: str
    missing: Callable[[], str]
    open: Callable[[Source, Setup], Runner]


BACKENDS: Registry[Backend] = Registry(
    "backend",
    group="rigl_compress.backends",
    adapt=instance_of(Backend, "backend"),
    modules=tuple(f"{__name__}.{module}" for module in ("onnxruntime", "sparse", "torch_networks", "openvino")),
)


def register_backend(backend: Backend) -> Backend:
    """Register a backend under its name."""
    return BACKENDS.register(backend.name, backend)


def usable_backend(name: str) -> Backend:
    """Return a backend that is installed; raise with what to install for it otherwise."""
    backend = BACKENDS[name]
    if reason := backend.missing():
        raise InputError(f"backend {name!r} cannot be used here: {reason}")
    return backend


def needs(module: str, cure: str) -> Callable[[], str]:
    """Return the check for a module that may not be installed.

    >>> needs("math", "")(), needs("no_such_thing", "pip install it")()
    ('', 'no_such_thing is not installed: pip install it')
    """
    return lambda: "" if find_spec(module) else f"{module} is not installed: {cure}"
