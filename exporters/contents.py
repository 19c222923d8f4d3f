"""What is in an ONNX file: a row for each tensor, with its zeros, its encoding and its bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.exporters.pattern import names_of
from rigl_compress.exporters.restore import Rebuilt, rebuilt_tensors
from rigl_compress.exporters.tensors import array_of, dense_of

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
    found, _ = rebuilt_tensors(model)
    parts = {name for each in found.values() for name in names_of(each.encoded)}
    rows = [*(_row(name, each) for name, each in found.items()), *_stored(model, parts)]
    return tuple(sorted(rows, key=lambda row: -row.total))


def _row(name: str, found: Rebuilt) -> TensorRow:
    return TensorRow(name, found.array.shape, count_nonzeros(found.array), found.label, found.encoded.nbytes)


def _stored(model: onnx.ModelProto, parts: set[str]) -> Iterator[TensorRow]:
    """Tensors that stand in the file as they are, or as sparse initializers, and are no parts of others."""
    for tensor in model.graph.initializer:
        if tensor.name not in parts:
            yield TensorRow(
                tensor.name, tuple(tensor.dims), count_nonzeros(array_of(tensor)), "dense", tensor.ByteSize()
            )
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
