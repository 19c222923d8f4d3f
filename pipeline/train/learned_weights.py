"""Whether training starts with weights that were trained before, and what a run says about them."""

import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.data.image_options import NORMALISATIONS
from rigl_compress.models.libraries.image_normalisation import normalisation_of
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.pipeline.recipe import Recipe, StartConfig
from rigl_compress.pipeline.workspace import Run
from rigl_compress.sparsity.methods import at_random


def has_learned(recipe: Recipe, spec: ModelSpec, model: nn.Module) -> bool:
    """Whether the weights that a network starts with were trained before. `model` has them, without any mask."""
    start = recipe.start or StartConfig()
    if _are_trained(start) or spec.is_pretrained:
        return True
    if start.weights == "initial":
        return _norms_were_trained(model) or _began_trained(Run.open(str(start.run)).recipe())
    if spec.network.is_ours or (start.weights == "fresh" and recipe.init.weights != "network"):
        return False
    # A function from outside of this package may load trained weights, which are the same whatever the seed. It is
    # called again only where all depends on it.
    if _norms_were_trained(model) or recipe.distill is None:
        return _norms_were_trained(model)
    return _mostly_equal(model, _other_draw(spec, recipe.seed + 1))


def _are_trained(start: StartConfig) -> bool:
    """Whether a recipe names weights that were trained: the final ones of a run, or a file."""
    return start.weights not in ("fresh", "initial", "model")


def _began_trained(recipe: Recipe) -> bool:
    """Whether the initial weights of an earlier run were trained, as far as its recipe says."""
    return recipe.model.is_pretrained or _are_trained(recipe.start or StartConfig())


def _norms_were_trained(model: nn.Module) -> bool:
    """Whether normalisation layers have other values than at their initialization, where all of a layer are equal.

    >>> _norms_were_trained(nn.BatchNorm1d(3))
    False
    """
    names = {name for name, each in model.named_modules() if "Norm" in type(each).__name__}
    weights = [each for name, each in model.named_parameters() if name.rpartition(".")[0] in names]
    return any(each.numel() > 1 and bool(torch.ne(each, each.flatten()[0]).any()) for each in weights)


def _other_draw(spec: ModelSpec, seed: int) -> nn.Module:
    silent = io.StringIO()  # what the function prints was seen when the network itself was built
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
        torch.manual_seed(seed)
        with redirect_stdout(silent), redirect_stderr(silent):
            return spec.build()


def _mostly_equal(model: nn.Module, other: nn.Module) -> bool:
    pairs = list(zip(sparse_parameters(model).values(), sparse_parameters(other).values(), strict=True))
    return 2 * sum(_equal(one, two) for one, two in pairs) > sum(one.numel() for one, _ in pairs)


def _equal(one: Tensor, two: Tensor) -> int:
    return int((one.cpu() == two.cpu()).sum())


def random_start_notes(recipe: Recipe, topology: object, learned: bool) -> Iterator[str]:
    """Yield a line if connections are drawn at random among pretrained weights.

    >>> len([*random_start_notes(Recipe("net"), None, True)]), [*random_start_notes(Recipe("net"), "magnitude", True)]
    (1, [])
    """
    rule, sparsity = recipe.sparsity.rule, recipe.sparsity.sparsity
    if learned and topology is None and rule.start is at_random and sparsity > 0:
        yield (
            f"the initial weights are pretrained, but {rule.name} keeps a random subset of them and loses most of what "
            'they learned: set start.topology = "magnitude" or "obs", or sparsity.method = "pruning"'
        )


def normalisation_notes(model: nn.Module, preprocessing: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a line if images are normalised differently from a library's training data, or nothing tells how."""
    known, own = normalisation_of(model), preprocessing.get("mean")
    if known is None or own is None:
        return
    used = f"the data are normalised with mean {list(own)} and std {list(preprocessing['std'])}"
    if not known:
        unknown = f"how the images of model {name!r} were normalised is unknown (no preprocessor_config.json says it)"
        yield f"{unknown}; {used}"
    elif not (_near(known["mean"], own) and _near(known["std"], preprocessing["std"])):
        has_options = "center" in preprocessing and len(known["mean"]) == 3  # those of folders of images
        yield (
            f"model {name!r} was trained on images with mean {list(known['mean'])} and std {list(known['std'])}, "
            f"but {used}{f': set {_setting(known)}' if has_options else ''}"
        )


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(abs(a - b) < 1e-3 for a, b in zip(one, other, strict=True))


def _setting(known: Mapping[str, Sequence[float]]) -> str:
    """Return the options for a normalisation.

    >>> _setting({"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}), _setting({"mean": (0.1,) * 3, "std": (0.2,) * 3})
    ('data.options.normalize = "half"', 'data.options.mean = [0.1, 0.1, 0.1] and data.options.std = [0.2, 0.2, 0.2]')
    """
    for word, each in NORMALISATIONS.items():
        if _near(known["mean"], each.mean) and _near(known["std"], each.deviation):
            return f'data.options.normalize = "{word}"'
    return f"data.options.mean = {list(known['mean'])} and data.options.std = {list(known['std'])}"
