"""Dense layers next to sparse ones: on kernels of ours they spare ONNX Runtime from rearranging images back and forth.

ONNX Runtime keeps images of dense convolutions in blocks of channels; the sparse kernels want them as they are. Only
layers that touch a sparse one are taken, directly or through one another.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
import onnx

from rigl_compress.runtime.graph import Graph, attributes, is_standard
from rigl_compress.runtime.layers import DEPTHWISE, Layer, within_reach

STEM, POOL = "DenseConv", "MaxPool"
# The first layer of a network reads so few channels; for more, ONNX Runtime's own kernels are as fast.
MOST_CHANNELS = 4


def dense_neighbours(graph: Graph, found: Sequence[Layer], sparse: Sequence[Layer]) -> list[Layer]:
    """Choose what runs dense on our kernels, given all layers and those that run sparse."""
    made, used = {layer.output for layer in sparse}, {name for layer in sparse for name in (layer.x, layer.residual)}
    rest = [layer for layer in found if layer.output not in made]
    depthwise = [layer for layer in rest if layer.operator == DEPTHWISE and (layer.x in made or layer.output in used)]
    used |= {layer.x for layer in depthwise}
    pools = [pool for node in graph.nodes if (pool := match_pool(node)) is not None and pool.output in used]
    used |= {pool.x for pool in pools}
    stems = [replace(layer, operator=STEM) for layer in rest if _is_stem(layer) and layer.output in used]
    made |= {layer.output for layer in (*depthwise, *stems)}
    return [*depthwise, *stems, *(pool for pool in pools if pool.x in made)]


def _is_stem(layer: Layer) -> bool:
    if layer.operator != "SparseConv" or layer.residual or len(layer.settings["kernel_shape"]) != 2:
        return False
    channels = layer.matrix.shape[1] // prod(layer.settings["kernel_shape"])
    return channels <= MOST_CHANNELS and layer.matrix.size == layer.weights and within_reach(layer.settings)


def match_pool(node: onnx.NodeProto) -> Layer | None:
    """Recognize the pooling that the kernels know: two axes, the largest pixel, all sizes given."""
    settings = attributes(node) if is_standard(node, "MaxPool") else {}
    if len(settings.get("kernel_shape", ())) != 2 or len(node.output) != 1:
        return None
    if settings.get("ceil_mode", 0) or settings.get("storage_order", 0):
        return None
    if settings.get("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    standard = {"strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1]}
    kept = {
        name: list(value) for name, value in {**standard, **settings}.items() if name in ("kernel_shape", *standard)
    }
    nothing = np.zeros((0, 0), dtype=np.float32)
    return Layer(POOL, (node,), node.input[0], nothing, 0, settings=kept) if within_reach(kept) else None
