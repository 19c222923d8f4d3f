"""Models in training as plain ones: what prunes, exports and counts needs layers that it knows."""

from copy import deepcopy

from torch import nn

from rigl_compress.models.innermost_layout import forget_layout
from rigl_compress.models.sparse_modules import SparseModule, make_dense
from rigl_compress.models.sparse_runs import split_runs


def with_plain_layers(model: nn.Module) -> nn.Module:
    """Return a model without sparse layers: itself if it has none, else a copy with plain layers in their place."""
    if not any(isinstance(module, SparseModule) for module in model.modules()):
        return model
    copy = deepcopy(model)
    for module in copy.modules():
        if isinstance(module, SparseModule):
            make_dense(module)
    split_runs(copy.modules())
    forget_layout(copy.modules())
    return copy
