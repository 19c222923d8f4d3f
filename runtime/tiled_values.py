"""Values that only operators of this package read and write: they are stored in tiles, as products compute them."""

from collections.abc import Mapping

import onnx
from onnx import helper

from rigl_compress.runtime.onnx_graph import outputs_of

# The names of outputs and inputs that may be in tiles; the attributes are "x_by_column" and so on.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {"SparseMatMul": ("y",), "AddLayerNorm": ("y", "sum"), "Attention": ("y",)}
_INPUTS: Mapping[str, Mapping[int, str]] = {
    "SparseMatMul": {0: "x"},
    "AddLayerNorm": {0: "x", 3: "residual"},
    "Attention": {0: "q", 1: "k", 2: "v"},
}
_DOMAIN = "rigl_compress"


def use_tiles(graph: onnx.GraphProto) -> None:
    """Set the attributes of operators whose values stay between them."""
    kept = outputs_of(graph) | {name for node in graph.node for name in _outside(node)}
    tiled = {name for node in graph.node for name in _written(node).values()} - kept
    for node in graph.node:
        for role, name in {**_written(node), **_read(node)}.items():
            if name in tiled:
                node.attribute.append(helper.make_attribute(f"{role}_by_column", 1))


def _written(node: onnx.NodeProto) -> dict[str, str]:
    """Return the outputs of a node that may be in tiles."""
    roles = _OUTPUTS.get(node.op_type, ()) if node.domain == _DOMAIN else ()
    return {role: name for role, name in zip(roles, node.output, strict=False) if name}


def _read(node: onnx.NodeProto) -> dict[str, str]:
    """Return the inputs of a node that may be in tiles."""
    roles = _INPUTS.get(node.op_type, {}) if node.domain == _DOMAIN else {}
    return {role: node.input[at] for at, role in roles.items() if at < len(node.input) and node.input[at]}


def _outside(node: onnx.NodeProto) -> list[str]:
    """Return the inputs of a node that cannot be in tiles."""
    roles = _INPUTS.get(node.op_type, {}) if node.domain == _DOMAIN else {}
    return [name for at, name in enumerate(node.input) if at not in roles]
