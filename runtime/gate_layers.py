"""The layers that compute gates of squeeze-excite: on sparse kernels where their gate is read by one.

In ONNX Runtime each of them takes a conversion of the layout, a convolution and an activation, for images of one pixel.
"""

from collections.abc import Sequence

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph

_LARGEST = 2**17  # weights; larger ones gain by their zeros alone


def gate_layers(found: Sequence[Layer], chosen: Sequence[Layer], graph: Graph) -> list[Layer]:
    """Return the layers of one pixel, not among those chosen, whose outputs are gates or lead to one."""
    gates = {layer.gate for layer in chosen if layer.gate}
    added = []
    for layer in reversed(found):
        if layer.output in gates and _is_small(layer, graph):
            gates.add(layer.x)
            added += [layer] if layer not in chosen else []
    return added[::-1]


def _is_small(layer: Layer, graph: Graph) -> bool:
    """Check for a 1×1 convolution of images of one pixel, with few weights."""
    shape = graph.shape(layer.x)
    one_pixel = shape is not None and tuple(shape[2:]) == (1, 1) and layer.settings.get("kernel_shape") == [1, 1]
    return one_pixel and layer.operator == "SparseConv" and layer.weights <= _LARGEST
