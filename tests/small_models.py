"""The registered networks, made small enough for tests: a quarter of the width, small images, short sequences."""

from typing import Any

import pytest

from rigl_compress.models.networks import ModelSpec, all_models

every_model = pytest.mark.parametrize("name", list(all_models()))


def small(name: str, **options: Any) -> ModelSpec:
    """A narrow network of the registered kind that takes small inputs, if it takes any size."""
    network = all_models()[name]
    shape = network.input_shape
    if network.vocabulary is not None:
        shape = (12,)
    elif shape[-1] > 64:
        shape = (3, 64, 64)
    return ModelSpec(name, {"width": 0.25, **options}).taking(shape)
