"""Small-Dense: the narrower dense network with as many parameters as the sparse one has."""

from dataclasses import replace

from rigl_compress.core.errors import InputError
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.sparsity.sparsity_config import SparsityConfig


def width_for_density(spec: ModelSpec, density: float) -> float:
    """Find the width factor at which a network has the given share of its parameters.

    >>> round(width_for_density(ModelSpec("lenet-300-100"), 0.02), 3)
    0.022
    """
    wanted = density * parameter_count(spec)
    if parameter_count(spec.with_options(width=1e-9)) > wanted:
        raise InputError(f"no width of {spec.name} has a share of {density:.3g} of its parameters: lower the sparsity")
    narrow, wide = 0.0, float(spec.options.get("width", 1.0))
    for _ in range(40):  # far below the width of one neuron
        middle = (narrow + wide) / 2
        narrow, wide = (
            (middle, wide) if parameter_count(spec.with_options(width=middle)) <= wanted else (narrow, middle)
        )
    return narrow


def in_training(config: SparsityConfig) -> SparsityConfig:
    """Return the settings of training; a network that was narrowed (small-dense) is trained dense.

    >>> in_training(SparsityConfig("small-dense")).method, in_training(SparsityConfig("rigl")).method
    ('dense', 'rigl')
    """
    return replace(config, method="dense") if config.rule.narrow else config


def parameter_count(spec: ModelSpec) -> int:
    """Count the parameters of a network; those of our networks are not allocated.

    >>> parameter_count(ModelSpec("lenet-300-100"))
    266610
    """
    return sum(parameter.numel() for parameter in spec.outline()[0].parameters())
