"""Data sets that a function makes: registered, of another package, or `package.module:NAME` instead of a name."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from pathlib import Path
from typing import Any

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.core.import_by_name import as_factory
from rigl_compress.data.dataset import DataSet
from rigl_compress.data.dataset_options import GIVEN, checked_options
from rigl_compress.data.download_sources import Log
from rigl_compress.data.torch_datasets import dataset_of_torch, is_of_torch


@dataclass(frozen=True)
class CustomDataSet:
    """A data set by the function that makes it, whose parameters are the options of a recipe.

    A parameter `folder` receives --data-dir, a parameter `log` a function that prints a line.
    """

    name: str
    make: Callable[..., DataSet]

    @property
    def title(self) -> str:
        """The first line of the function's docstring."""
        return (self.make.__doc__ or "").strip().partition("\n")[0]

    @property
    def origin(self) -> str:
        """Where the function is defined."""
        return f"{self.make.__module__}:{getattr(self.make, '__qualname__', type(self.make).__qualname__)}"

    def load(self, data_dir: Path | None, log: Log, options: Mapping[str, Any]) -> DataSet:
        """Call the function with the options of a recipe."""
        what = f"data set {self.name!r}"
        chosen = checked_options(self.make, options, what)
        offered = dict(zip(GIVEN, (data_dir, log), strict=True))
        taken = {key: value for key, value in offered.items() if key in signature(self.make).parameters}
        try:
            found: Any = self.make(**taken, **chosen)
        except InputError:
            raise
        except Exception as error:  # foreign code can raise anything
            raise InputError(f"{what} cannot be made: {type(error).__name__}: {first_line(error)}") from error
        if is_of_torch(found):
            return dataset_of_torch(self.name, f"made by {self.origin}", found, log)
        if not isinstance(found, DataSet):
            raise InputError(
                f"{what} returns a {type(found).__name__}, expected a rigl_compress.DataSet, or a pair of torch "
                "Datasets or DataLoaders"
            )
        return found


def custom_dataset(name: str, found: Any) -> CustomDataSet:
    """Check that an object can make a data set."""
    if getattr(found, "__annotations__", {}).get("return") in (tuple, "tuple"):
        return CustomDataSet(name, found)
    return CustomDataSet(name, as_factory(found, f"data set {name!r}", DataSet, "rigl_compress.DataSet"))


@lru_cache(maxsize=4)
def custom_outline(dataset: CustomDataSet, options: str) -> tuple[tuple[int, ...], int]:
    """Return the shape of an input and the number of training samples; options are JSON, so that they can be hashed."""
    found = dataset.load(None, lambda _: None, json.loads(options))
    return found.input_shape, len(found.train)
