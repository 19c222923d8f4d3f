"""The registered networks, made small enough for tests: a quarter of the width, small images, short sequences."""

from typing import Any

import pytest

from rigl_compress.models.model_registry import MODELS, ModelSpec

every_model = pytest.mark.parametrize("name", list(MODELS))


def small(name: str, **options: Any) -> ModelSpec:
    """A narrow network of the registered kind that takes small inputs, if it takes any size."""
    network = MODELS[name]
    shape = network.input_shape
    if network.vocabulary is not None:
        shape = (12,)
    elif shape[-1] > 64:
        shape = (3, 64, 64)
    sizes = {"image": shape[-1]} if "image" in network.options else {}
    blocks = {"depth": 2} if "heads" in network.options else {}  # transformers repeat one block
    return ModelSpec(name, {"width": 0.25, **sizes, **blocks, **options}).taking(shape)
