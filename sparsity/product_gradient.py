"""The gradient of all weights of a sparse layer, some of its rows at a time, from what its backward passes recorded."""

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from rigl_compress.core.errors import InputError
from rigl_compress.models.innermost_layout import batch_first
from rigl_compress.models.sparse_modules import SparseModule
from rigl_compress.models.training_kernels import LayerShape


def gradient_of_rows(module: SparseModule, first: int, last: int) -> Tensor:
    """Return the gradient of the rows of the dense weight, active or not: [rows, …]."""
    if not module.recorded:
        raise InputError(
            "a topology update needs the gradients of all connections, and no backward pass has recorded them: call "
            "backward() after the previous step of the optimizer"
        )
    shape = module.wiring.layer
    parts = [_of_pair(shape, x, dy, (first, last)) for _, x, dy in module.recorded]
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _of_pair(shape: LayerShape, x: Tensor, dy: Tensor, rows: tuple[int, int]) -> Tensor:
    """Return the gradient of one product: tensors are [channels, height, width, batch]."""
    if shape.kernel == (1, 1) and shape.stride == (1, 1) and shape.padding == (0, 0) and shape.groups == 1:
        return dy[rows[0] : rows[1]].flatten(1) @ x.flatten(1).t()
    channels, outputs = shape.inputs // shape.groups, shape.outputs // shape.groups
    parts = []
    for group in range(rows[0] // outputs, -(-rows[1] // outputs)):
        start, end = max(rows[0], group * outputs), min(rows[1], (group + 1) * outputs)
        images, gradients = x[group * channels : (group + 1) * channels], dy[start:end]
        parts.append(_of_convolution(shape, images, gradients))
    return torch.cat(parts)


def _of_convolution(shape: LayerShape, x: Tensor, dy: Tensor) -> Tensor:
    images, gradients = (batch_first(each) for each in (x, dy))
    size = (len(dy), len(x), *shape.kernel)
    options = (shape.stride, shape.padding, shape.dilation, 1)
    return conv2d_weight(images, size, gradients, *options)  # type: ignore[no-any-return, no-untyped-call]
