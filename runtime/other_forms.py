"""Layers in other forms: weights on the left, of rank 3, in an Einsum; transposed inputs and convolutions; float16."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod

import numpy as np
import onnx
from onnx import TensorProto, helper

from rigl_compress.runtime.layer_matching import DEPTHWISE, Layer, Match, can_run, match_gemm
from rigl_compress.runtime.onnx_graph import Array, Graph, attributes, float_constant, has_input

_SAME_AS_CONV = {"kernel_shape": [1], "strides": [1], "pads": [0, 0], "dilations": [1]}
SPREAD = "SpreadPixels"  # DepthToSpace of this package: ONNX Runtime's takes as long as the convolution
_BLOCK = 2**16  # the longest side of a filter without overlap


def in_any_form(match: Match, *others: Match) -> Match:
    """Return a matcher that tries several forms of an operator, in floats of 32 or 16 bits."""

    def matching(graph: Graph, node: onnx.NodeProto) -> Layer | None:
        values = [name for name in node.input[:2] if graph.reads_quantized(name)]
        if any(graph.constant(name) is None for name in values):  # ONNX Runtime computes in integers
            return None
        found = next((layer for each in (match, *others) if (layer := each(graph, node)) is not None), None)
        if found is None:
            return None
        scales = tuple(each for name in node.input if (each := graph.scale_of(name)) is not None)
        found = replace(found, scales=scales) if scales else found
        return _widened(found) if any(map(graph.is_half, (*node.input, *node.output))) else found

    return matching


def _widened(layer: Layer) -> Layer | None:
    """Return a layer of float16 with a product in float32: what it reads and writes is converted."""
    if layer.operator == DEPTHWISE or layer.projection is not None or layer.before or layer.after:
        return None
    name = f"{layer.nodes[0].output[0]}/x"
    cast = helper.make_node("Cast", [layer.x], [name], to=TensorProto.FLOAT)
    after = (("Cast", {"to": TensorProto.FLOAT16}),)
    return replace(layer, x=name, read=layer.x, before=(cast,), after=after)


def match_transposed_gemm(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a Gemm whose input is transposed."""
    if not attributes(node).get("transA", 0):
        return None
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.attribute[:]
    plain.attribute.extend(each for each in node.attribute if each.name != "transA")
    layer = match_gemm(graph, plain)
    return None if layer is None else _behind_transpose(replace(layer, nodes=(node,)), node)


def _behind_transpose(layer: Layer, node: onnx.NodeProto) -> Layer:
    name = f"{node.output[0]}/x"
    return replace(layer, x=name, before=(helper.make_node("Transpose", [layer.x], [name], perm=[1, 0]),))


def match_left_matmul(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a product with constant weights on the left: a convolution along the last axis."""
    weight, shape = float_constant(graph, node.input[0], 2), graph.shape(node.input[1])
    if weight is None or shape is None or graph.constant(node.input[1]) is not None:
        return None
    if len(shape) == 3:
        return Layer("SparseConv", (node,), node.input[1], weight, weight.size, settings=_SAME_AS_CONV)
    if len(shape) != 2:
        return None
    layer = _behind_transpose(Layer("SparseMatMul", (node,), node.input[1], weight, weight.size), node)
    return replace(layer, after=(("Transpose", {"perm": [1, 0]}),))


def match_stacked_matmul(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a product with constant weights [1, inputs, outputs]."""
    weight, shape = float_constant(graph, node.input[1], 3), graph.shape(node.input[0])
    if weight is None or len(weight) != 1 or shape is None or len(shape) < 3:
        return None
    return Layer("SparseMatMul", (node,), node.input[0], weight[0].T, weight.size)


def match_einsum(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match an Einsum that multiplies the last axis by constant weights."""
    equation = attributes(node).get("equation", b"").decode().replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    terms = inputs.split(",")
    if (
        not arrow
        or len(terms) != 2
        or len(node.input) != 2
        or not equation.replace(",", "").replace("->", "").isalpha()
    ):
        return None
    for x, weight in ((0, 1), (1, 0)):
        matrix = float_constant(graph, node.input[weight], 2)
        order = None if matrix is None else _order(terms[x], terms[weight], output)
        if matrix is not None and order is not None and graph.constant(node.input[x]) is None:
            return Layer("SparseMatMul", (node,), node.input[x], np.transpose(matrix, order), matrix.size)
    return None


def _order(x: str, weight: str, output: str) -> tuple[int, int] | None:
    """Return the order of the axes of the weights as outputs and inputs, if the last axis of x is multiplied.

    >>> _order("bsk", "kn", "bsn"), _order("bsk", "nk", "bsn"), _order("bks", "kn", "bsn")
    ((1, 0), (0, 1), None)
    """
    letters = {*x, *weight, *output}
    if len(weight) != 2 or len({*x}) != len(x) or not x or len(letters) != len(x) + 1 or x[-1] not in weight:
        return None
    other = weight.replace(x[-1], "")
    if len(other) != 1 or output != x[:-1] + other:
        return None
    return (0, 1) if weight[1] == x[-1] else (1, 0)


def match_conv_transpose(graph: Graph, node: onnx.NodeProto) -> Layer | None:
    """Match a transposed convolution that is a plain one: with stride 1, or with filters that do not overlap."""
    weight, settings = float_constant(graph, node.input[1], 4), attributes(node)
    bias = float_constant(graph, node.input[2], 1) if has_input(node, 2) else None
    if weight is None or (has_input(node, 2) and (bias is None or len(bias) != weight.shape[1])):
        return None
    plain = settings.get("group", 1) == 1 and settings.get("auto_pad", b"NOTSET") == b"NOTSET"
    if not plain or "output_shape" in settings or any(settings.get("output_padding", [])):
        return None
    if settings.get("kernel_shape", list(weight.shape[2:])) != list(weight.shape[2:]):
        return None
    form: Callable[..., Layer | None] = _spread if any(side > 1 for side in settings.get("strides", [])) else _flipped
    return form(graph, node, weight, bias)


def _flipped(graph: Graph, node: onnx.NodeProto, weight: Array, bias: Array | None) -> Layer | None:  # noqa: ARG001
    """Return a transposed convolution of stride 1: a convolution with the filters turned around."""
    settings, kernel = attributes(node), list(weight.shape[2:])
    dilations, pads = list(settings.get("dilations", [1, 1])), list(settings.get("pads", [0] * 4))
    if len(dilations) != 2 or len(pads) != 4:
        return None
    reach = [(size - 1) * step for size, step in zip(kernel, dilations, strict=True)] * 2
    kept = {"kernel_shape": kernel, "strides": [1, 1], "dilations": dilations}
    kept["pads"] = [far - pad for far, pad in zip(reach, pads, strict=True)]
    matrix = weight[:, :, ::-1, ::-1].transpose(1, 0, 2, 3).reshape(weight.shape[1], -1)
    return (
        Layer("SparseConv", (node,), node.input[0], matrix, weight.size, bias, settings=kept) if can_run(kept) else None
    )


def _spread(graph: Graph, node: onnx.NodeProto, weight: Array, bias: Array | None) -> Layer | None:  # noqa: ARG001
    """Return a transposed convolution without overlap: a product per pixel, with outputs spread over a block."""
    settings, (side, width) = attributes(node), weight.shape[2:]
    square = list(settings["strides"]) == [side, width] and side == width <= _BLOCK
    if not square or any(settings.get("pads", [])) or any(step != 1 for step in settings.get("dilations", [])):
        return None
    matrix = weight.transpose(1, 2, 3, 0).reshape(-1, len(weight))
    wide = None if bias is None else np.repeat(bias, side * side)
    kept = {"kernel_shape": [1, 1], "strides": [1, 1], "pads": [0] * 4, "dilations": [1, 1]}
    after = ((SPREAD, {"blocksize": int(side)}),)
    layer = Layer("SparseConv", (node,), node.input[0], matrix, weight.size, wide, settings=kept)
    return replace(layer, after=after, spread=prod(weight.shape[2:]))


# Forms of an operator besides the usual one.
OTHERS: Mapping[str, tuple[Match, ...]] = {
    "Gemm": (match_transposed_gemm,),
    "MatMul": (match_stacked_matmul, match_left_matmul),
}
