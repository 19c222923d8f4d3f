"""Gates before a sparse convolution, as squeeze-excite has them: factors of the pixels that it reads."""

from dataclasses import replace

from rigl_compress.runtime.layer_matching import Layer
from rigl_compress.runtime.onnx_graph import Graph, is_standard


def fold_gate(graph: Graph, layer: Layer) -> Layer:
    """Fold the product of an image and a factor for each of its channels into the convolution that alone reads it."""
    product = graph.producers.get(layer.x)
    if layer.operator != "SparseConv" or product is None or not is_standard(product, "Mul") or layer.before:
        return layer
    if graph.only_consumer(layer.x) is None:
        return layer
    pairs = (product.input, product.input[::-1])
    folded = (replace(layer, x=x, gate=gate) for x, gate in pairs if _gates(graph, x, gate))
    return next(folded, layer)


def _gates(graph: Graph, x: str, gate: str) -> bool:
    """Check that a value has one factor for each channel of each image."""
    image, factors = graph.shape(x), graph.shape(gate)
    if image is None or factors is None or len(image) != 4 or len(factors) != 4 or graph.is_half(x):
        return False
    return tuple(factors) == (*image[:2], 1, 1) and tuple(image[2:]) != (1, 1) and isinstance(image[1], int)
