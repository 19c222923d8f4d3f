"""Everything that has a name, with a one-line description: the content of `rigl-compress list`."""

from collections.abc import Mapping
from typing import Any

from rigl_compress.core.dataclass_io import plain
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.experiments.spec import parse_comparison, shipped_comparisons
from rigl_compress.exporters.encodings import ENCODINGS
from rigl_compress.exporters.sparsify import COMPACT, encoding_names
from rigl_compress.models.model_registry import MODELS
from rigl_compress.pipeline.bench.backends import BACKENDS, Backend
from rigl_compress.pipeline.optimizers import OPTIMIZERS
from rigl_compress.pipeline.recipe import Recipe, StartConfig, load_recipe, shipped_recipes
from rigl_compress.runtime.kernel_library import kernels_library, unavailable_reason
from rigl_compress.runtime.kernels import chosen_set
from rigl_compress.sparsity.distributions import DISTRIBUTIONS
from rigl_compress.sparsity.initialization import INITIALIZERS
from rigl_compress.sparsity.method_variants import VARIANTS
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.schedules import DECAYS
from rigl_compress.sparsity.training_flops import TRAINING_CONVENTIONS


def everything() -> dict[str, dict[str, str]]:
    """Return kind → name → a one-line description."""
    return {
        "recipes": {name: _first(load_recipe(name).about) for name in shipped_recipes()},
        "comparisons": {
            name: _first(parse_comparison(path.read_text(encoding="utf-8"), name).about)
            for name, path in shipped_comparisons().items()
        },
        "models": {name: network.summary for name, network in MODELS.items()},
        "data sets": {name: spec.title for name, spec in DATASETS.items()},
        "methods": {name: method.summary for name, method in METHODS.items()},
        "encodings": {name: _encoding(name) for name in encoding_names()},
        "distributions": _documented({name: each.share for name, each in DISTRIBUTIONS.items()}),
        "backends": {name: _described(backend) for name, backend in BACKENDS.items()},
        "sparse kernels": _kernels(),
        "decays": _documented(DECAYS),
        "variants": _documented(VARIANTS),
        "optimizers": dict.fromkeys(OPTIMIZERS, ""),
        "initializers": dict.fromkeys(INITIALIZERS, ""),
        "training conventions": dict.fromkeys(TRAINING_CONVENTIONS, ""),
    }


def recipe_keys() -> list[str]:
    """Return the keys of a recipe as `--set` takes them: `train.epochs`."""
    content = plain(Recipe("any", start=StartConfig("any")))
    tables = {name: table for name, table in content.items() if isinstance(table, Mapping)}
    return ["seed", *(f"{name}.{key}" for name, table in tables.items() for key in table)]


def _encoding(name: str) -> str:
    return "the smallest encoding for each tensor" if name == COMPACT else ENCODINGS[name].about


def _described(backend: Backend) -> str:
    missing = backend.missing()
    return f"{backend.summary} ({missing})" if missing else backend.summary


def _kernels() -> dict[str, str]:
    """Return the kernel library and the instruction set it uses on this machine, or why there is none."""
    missing = unavailable_reason()
    if missing:
        return {"library": f"none ({missing})"}
    return {"library": str(kernels_library()), "instructions": chosen_set()}


def _documented(functions: Mapping[str, Any]) -> dict[str, str]:
    return {name: _first(function.__doc__ or "") for name, function in functions.items()}


def _first(text: str) -> str:
    """Return the first sentence, or the whole text if it has only one.

    >>> _first(" The paper's way. And more.")
    "The paper's way."
    """
    line = " ".join(text.split())
    return line.partition(". ")[0].rstrip(".") + "." if line else ""
