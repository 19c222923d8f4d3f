"""What is in an ONNX file: a row for each tensor, with its zeros, its encoding and its bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from rigl_compress.exporters.restore import ancestors, decoded, dense_of
from rigl_compress.exporters.sparsify import metadata_of

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorRow:
    """What stands in a file for one tensor."""

    name: str
    shape: tuple[int, ...]
    nonzeros: int
    encoding: str
    bytes: int

    @property
    def total(self) -> int:
        """All places of the tensor."""
        return prod(self.shape)

    @property
    def sparsity(self) -> float:
        """The share of zeros."""
        return 1 - self.nonzeros / self.total if self.total else 0.0


def rows_of(model: onnx.ModelProto) -> tuple[TensorRow, ...]:
    """Give what stands in a file for each tensor of the main graph, the largest number of places first."""
    rows = [*_rebuilt(model), *_stored(model)]
    return tuple(sorted(rows, key=lambda row: -row.total))


def _rebuilt(model: onnx.ModelProto) -> Iterator[TensorRow]:
    """Tensors that operators rebuild."""
    for name, label in metadata_of(model).get("tensors", {}).items():
        array = decoded(model, name, label)
        size = _bytes(model.graph, ancestors(model.graph, name))
        yield TensorRow(name, tuple(array.shape), count_nonzeros(array), label, size)


def _bytes(graph: onnx.GraphProto, names: set[str]) -> int:
    parts: list[Any] = [part for part in (*graph.initializer, *graph.value_info) if part.name in names]
    parts += [sparse for sparse in graph.sparse_initializer if sparse.values.name in names]
    parts += [node for node in graph.node if names & set(node.output)]
    return sum(part.ByteSize() for part in parts)


def _stored(model: onnx.ModelProto) -> Iterator[TensorRow]:
    """Tensors that stand in the file as they are, or as sparse initializers."""
    labels = metadata_of(model).get("tensors", {})
    parts = {each for name in labels for each in ancestors(model.graph, name)}
    for tensor in model.graph.initializer:
        if tensor.name not in parts:
            nonzeros = count_nonzeros(numpy_helper.to_array(tensor))
            yield TensorRow(tensor.name, tuple(tensor.dims), nonzeros, "dense", tensor.ByteSize())
    for sparse in model.graph.sparse_initializer:
        if sparse.values.name not in parts:
            nonzeros = count_nonzeros(dense_of(sparse))
            yield TensorRow(sparse.values.name, tuple(sparse.dims), nonzeros, "sparse", sparse.ByteSize())


def count_nonzeros(array: Array) -> int:
    """Count the elements that are not zero; in what is not a number, all of them.

    >>> count_nonzeros(np.array([0.0, 1.0, -0.0])), count_nonzeros(np.array(["", "a"]))
    (1, 2)
    """
    return int(np.count_nonzero(array)) if array.dtype.kind in "fiu" else array.size
