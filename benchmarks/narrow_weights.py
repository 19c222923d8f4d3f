"""How fast is a sparse perceptron at batch 1 with weights of 32, 16 and 8 bits?

    python benchmarks/narrow_weights.py [--sparsity 0.9]

The same masks in three files: float32; float16 that a Cast widens; int8 that DequantizeLinear scales per output. Ratios
are to ONNX Runtime with the same file, timed in turn as in `sparse_inference.py`; it dequantizes int8 weights in every
run. `bytes`: of the packed weights.
"""

from collections.abc import Callable
from typing import Any

import click
import numpy as np
import onnx
import torch
from inference_networks import Case, masked, perceptron
from inference_timing import compare
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from rigl_compress.exporters.torch_to_onnx import export_graph
from rigl_compress.runtime.session import sparse_model

Array = NDArray[Any]
Parts = Callable[[Array], dict[str, Array]]


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose matrices are stored in 16 bits."""
    return _stored(model, lambda array: {"half": array.astype(np.float16)}, "Cast", to=TensorProto.FLOAT)


def scaled(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose matrices are stored in 8 bits, with a scale per output."""

    def parts(array: Array) -> dict[str, Array]:
        scale = (np.abs(array).max(axis=1) / 127).astype(np.float32)
        return {"bytes": np.rint(array / scale[:, None]).astype(np.int8), "scale": scale}

    return _stored(model, parts, "DequantizeLinear", axis=0)


def _stored(model: onnx.ModelProto, parts: Parts, kind: str, **settings: int) -> onnx.ModelProto:
    """Replace each matrix by a node that computes it from others."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    matrices = [each for each in copy.graph.initializer if len(each.dims) == 2]
    kept = [each for each in copy.graph.initializer if len(each.dims) != 2]
    nodes = list(copy.graph.node)
    del copy.graph.initializer[:], copy.graph.node[:]
    for tensor in matrices:
        made = {f"{tensor.name}/{name}": each for name, each in parts(numpy_helper.to_array(tensor)).items()}
        kept += [numpy_helper.from_array(each, name) for name, each in made.items()]
        nodes.insert(0, helper.make_node(kind, list(made), [tensor.name], **settings))
    copy.graph.initializer.extend(kept)
    copy.graph.node.extend(nodes)
    return copy


@click.command()
@click.option("--sparsity", multiple=True, type=float, default=(0.8, 0.9, 0.95), show_default=True)
@click.option("--rounds", default=21, show_default=True)
@click.option("--seed", default=0, show_default=True)
def main(sparsity: tuple[float, ...], rounds: int, seed: int) -> None:
    """Print a row for each sparsity and kind of weights."""
    torch.set_num_threads(1)
    click.echo("| sparsity | weights | bytes | ratio | ours ms | difference |\n|---|---|---|---|---|---|")
    for level in sparsity:
        model, example = masked(Case("mlp", perceptron, 1), level, seed)
        plain = export_graph(model, example)
        inputs = {"input": np.random.default_rng(seed).random((1, 1024), dtype=np.float32)}
        for name, each in {"float32": plain, "float16": halved(plain), "int8": scaled(plain)}.items():
            rewritten = onnx.ModelProto.FromString(sparse_model(each, 1).model)
            size = sum(len(t.raw_data) for t in rewritten.graph.initializer if t.name.endswith("/packed"))
            found = compare(each.SerializeToString(), inputs, 1, rounds)
            row = (f"{found.ratios(1)[1]:.2f}", f"{found.figures()['sparse_ms']:.3g}", f"{found.difference:.0e}")
            click.echo(f"| {level:.0%} | {name} | {size:,} | {' | '.join(row)} |")


if __name__ == "__main__":
    main()
