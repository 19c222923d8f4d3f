"""Everything that has a name, with a line about it: what `rigl-compress list` shows."""

from collections.abc import Mapping
from typing import Any

from rigl_compress.models.networks import all_models
from rigl_compress.pipeline.bench.backends import Backend, all_backends
from rigl_compress.pipeline.compare.comparison import parse_comparison, shipped_comparisons
from rigl_compress.pipeline.recipe import load_recipe, shipped_recipes
from rigl_compress.pipeline.train.costs import TRAINING_CONVENTIONS
from rigl_compress.pipeline.train.data.catalog import DATASETS
from rigl_compress.pipeline.train.distributions import DISTRIBUTIONS
from rigl_compress.pipeline.train.initialize import INITIALIZERS
from rigl_compress.pipeline.train.methods import METHODS, VARIANTS
from rigl_compress.pipeline.train.optimizers import OPTIMIZERS
from rigl_compress.pipeline.train.schedules import DECAYS
from rigl_compress.runtime.kernels import chosen_set
from rigl_compress.runtime.library import kernels_library, why_not


def everything() -> dict[str, dict[str, str]]:
    """Give kind → name → a line about it."""
    return {
        "recipes": {name: _first(load_recipe(name).about) for name in shipped_recipes()},
        "comparisons": {
            name: _first(parse_comparison(path.read_text(encoding="utf-8"), name).about)
            for name, path in shipped_comparisons().items()
        },
        "models": {name: network.summary for name, network in all_models().items()},
        "data sets": {name: spec.title for name, spec in DATASETS.items()},
        "methods": {name: method.summary for name, method in METHODS.items()},
        "distributions": _documented({name: each.share for name, each in DISTRIBUTIONS.items()}),
        "backends": {name: _stated(backend) for name, backend in all_backends().items()},
        "sparse kernels": _kernels(),
        "decays": _documented(DECAYS),
        "variants": _documented(VARIANTS),
        "optimizers": dict.fromkeys(OPTIMIZERS, ""),
        "initializers": dict.fromkeys(INITIALIZERS, ""),
        "conventions of training FLOPs": dict.fromkeys(TRAINING_CONVENTIONS, ""),
    }


def _stated(backend: Backend) -> str:
    missing = backend.missing()
    return f"{backend.summary} ({missing})" if missing else backend.summary


def _kernels() -> dict[str, str]:
    """Give the library that other hosts load, and the instructions that it uses here; or what is missing."""
    missing = why_not()
    if missing:
        return {"library": f"none ({missing})"}
    return {"library": str(kernels_library()), "instructions": chosen_set()}


def _documented(functions: Mapping[str, Any]) -> dict[str, str]:
    return {name: _first(function.__doc__ or "") for name, function in functions.items()}


def _first(text: str) -> str:
    """Give the first sentence, or what there is.

    >>> _first(" The paper's way. And more.")
    "The paper's way."
    """
    line = " ".join(text.split())
    return line.partition(". ")[0].rstrip(".") + "." if line else ""
