"""Importing the whole package, with coverage counters in its code where atheris is installed."""

import importlib
import os
import pkgutil
import sys
from contextlib import AbstractContextManager, nullcontext
from importlib.machinery import ModuleSpec
from typing import Any

PACKAGE = "rigl_compress"
_NOT_IMPORTED = ("rigl_kernels", "__main__")  # a plain library, and what runs when imported


def has_atheris() -> bool:
    """Return whether inputs can be guided by coverage here."""
    return importlib.util.find_spec("atheris") is not None


def load_package(guided: bool) -> None:
    """Import every module of the package; nothing is left to be imported while inputs are tried."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with _instrumenting() if guided else nullcontext():
        package = importlib.import_module(PACKAGE)
        for module in pkgutil.walk_packages(package.__path__, f"{PACKAGE}."):
            if not module.name.endswith(_NOT_IMPORTED):
                importlib.import_module(module.name)
    importlib.import_module("torch").set_num_threads(1)


def _instrumenting() -> AbstractContextManager[Any]:
    import atheris

    sys.meta_path[:] = [_Unwrapped(finder) if _redirects(finder) else finder for finder in sys.meta_path]
    return _quietly(atheris.instrument_imports(include=[PACKAGE]))


def _redirects(finder: Any) -> bool:
    return "ScikitBuild" in type(finder).__name__


class _Unwrapped:
    """The finder of an editable install whose loaders are the plain ones: atheris instruments no others."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def find_spec(self, *arguments: Any) -> ModuleSpec | None:
        """Find a module."""
        spec: ModuleSpec | None = self._finder.find_spec(*arguments)
        if spec is not None:
            spec.loader = vars(spec.loader).get("_skbuild_loader", spec.loader)
        return spec

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)


class _quietly:  # noqa: N801  (a context manager, called like a function)
    """Do not print a line for each module."""

    def __init__(self, inner: AbstractContextManager[Any]) -> None:
        self._inner = inner

    def __enter__(self) -> None:
        self._stderr, sys.stderr = sys.stderr, open(os.devnull, "w")
        self._inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._inner.__exit__(*error)
        sys.stderr.close()
        sys.stderr = self._stderr
