"""Differences of other implementations from the paper and its authors' code, by name, for comparisons."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from rigl_compress.core.registry import Registry
from rigl_compress.sparsity import connection_quotas as quotas
from rigl_compress.sparsity import connection_scores as scores
from rigl_compress.sparsity.methods import METHODS, Method

VARIANTS: Registry[Callable[[Method], Method]] = Registry("variant")


def step_and_update(method: Method) -> Method:
    """Take the optimizer step too, and update after it."""
    return replace(method, replaces_step=False)


def round_up(method: Method) -> Method:
    """Replace ⌈n · f⌉ connections, at least one."""
    return replace(method, quota=quotas.swap_rounding_up)


def reset_regrown(method: Method) -> Method:
    """A connection dropped and regrown in one update starts at zero, as if it were new."""
    return replace(method, keeps_regrown=False)


def new_random(method: Method) -> Method:
    """New connections start at random weights as large as the active ones."""
    return replace(method, new_weights=scores.random_like_active)


def new_along_gradient(method: Method) -> Method:
    """New connections start with a step of `new_weight_scale` against the gradient."""
    return replace(method, new_weights=scores.against_gradient, options={**method.options, "new_weight_scale": 1e-3})


for _variant in (step_and_update, round_up, reset_regrown, new_random, new_along_gradient):
    VARIANTS.register(_variant.__name__.replace("_", "-"), _variant)


def find_method(method: str | Method, options: Mapping[str, float], variants: Iterable[str]) -> Method:
    """Return a method, by its name or reference or as it is, with variants and options applied.

    >>> find_method("rigl", {}, ["reset-regrown"]).keeps_regrown
    False
    """
    found = method if isinstance(method, Method) else METHODS[method]
    for variant in variants:
        found = VARIANTS[variant](found)
    return found.with_options(options)
