"""Dense layers next to sparse ones: on kernels of ours they spare ONNX Runtime from rearranging images back and forth.

ONNX Runtime keeps images of dense convolutions in blocks of channels; the sparse kernels want them as they are. Only
depthwise layers that touch a sparse one are taken.
"""

from collections.abc import Sequence

from rigl_compress.runtime.layers import DEPTHWISE, Layer


def dense_neighbours(found: Sequence[Layer], sparse: Sequence[Layer]) -> list[Layer]:
    """Choose what runs dense on our kernels, given all layers and those that run sparse."""
    made, used = {layer.output for layer in sparse}, {name for layer in sparse for name in (layer.x, layer.residual)}
    return [layer for layer in found if layer.operator == DEPTHWISE and (layer.x in made or layer.output in used)]
