"""The smallest file: `compact` is never larger than one encoding for all, nor fewer bits than all of them."""

from functools import lru_cache

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from sparse_nets import NETS, plain_model, sparse_weight

from rigl_compress.exporters.encoding_choice import Cost, _total, smallest_choice
from rigl_compress.exporters.onnx_export import Layout
from rigl_compress.exporters.sparsify import clear_negative_zeros, encoding_names, sparsify, write_metadata
from rigl_compress.exporters.value_precision import VALUES

SIZES = {"tiny": (4, 6, 3), "small": (20, 30, 10), "narrow": (64, 8, 8, 8, 2), "wide": (100, 60)}
SPARSITIES = (0.0, 0.5, 0.8, 0.9, 0.97, 1.0)


def network(widths: tuple[int, ...], sparsity: float) -> onnx.ModelProto:
    """Layers one behind the other, with the names that torch would give them."""
    nodes, weights = [], {}
    for number, shape in enumerate(zip(widths[1:], widths, strict=False)):
        inputs = [f"h{number}" if number else "x", f"layers.{number}.weight", f"layers.{number}.bias"]
        nodes.append(helper.make_node("Gemm", inputs, [f"h{number + 1}"], transB=1))
        weights |= {inputs[1]: sparse_weight(sparsity, shape, number), inputs[2]: np.ones(shape[0], dtype=np.float32)}
    ends = [("x", widths[0]), (f"h{len(nodes)}", widths[-1])]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", width]) for name, width in ends]
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "network", values[:1], values[1:], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@lru_cache
def bytes_of(name: str, sparsity: float, encoding: str, values: str) -> int:
    """The bytes of a file, all that is said about it included."""
    plain = onnx.ModelProto()
    plain.CopyFrom(plain_model(name) if name in NETS else network(SIZES[name], sparsity))
    clear_negative_zeros(plain)
    model = sparsify(plain, encoding, values)
    write_metadata(model, Layout(encoding, values, {"recipe": "mine"}).metadata())
    return len(model.SerializeToString(deterministic=True))


CASES = [*((name, sparsity) for name in SIZES for sparsity in SPARSITIES), ("convolutions", 0.9)]


@pytest.mark.parametrize(("name", "sparsity"), CASES)
def test_no_simpler_choice_is_smaller(name: str, sparsity: float) -> None:
    for values in VALUES:
        sizes = {encoding: bytes_of(name, sparsity, encoding, values) for encoding in encoding_names()}
        assert min(sizes.values()) == sizes["compact"], values
        for encoding in encoding_names():
            assert sizes[encoding] <= bytes_of(name, sparsity, encoding, "fp32"), (encoding, values)
            named = len(encoding) - len("dense")  # in what is said about the file
            assert sizes[encoding] <= bytes_of(name, sparsity, "dense", values) + named, (encoding, values)


sizes = st.integers(10, 300)
shared = st.sets(st.sampled_from(["rigl/a", "rigl/b", "rigl/c"])).map(lambda names: dict.fromkeys(names, 120))
tensors = st.fixed_dictionaries(
    {label: st.builds(Cost, sizes, shared) for label in ("dense", "gap8", "bitmask", "gap8+fp16", "dense+fp16")}
)


@given(st.lists(tensors, min_size=1, max_size=6))
def test_no_simpler_choice_costs_less(found: list[dict[str, Cost]]) -> None:
    costs = {f"t{number}": each for number, each in enumerate(found)}
    every = ("dense", "gap8", "bitmask")
    for lossy in (False, True):
        best = _total(costs, smallest_choice(costs, every, lossy=lossy))
        for encoding in every:
            assert best <= _total(costs, smallest_choice(costs, ("dense", encoding), lossy=lossy))
            assert best <= _total(costs, dict.fromkeys(costs, encoding))
    assert best <= _total(costs, smallest_choice(costs, every, lossy=False))
