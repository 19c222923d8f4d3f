"""The tensors of an ONNX file: a row for each, with its non-zeros, encoding and bytes."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from rigl_compress.exporters.bounded_tensors import array_of, dense_of
from rigl_compress.exporters.encoding_patterns import names_of
from rigl_compress.exporters.restore import Rebuilt, rebuilt_tensors

Array = NDArray[Any]


@dataclass(frozen=True)
class TensorRow:
    """A tensor of a file."""

    name: str
    shape: tuple[int, ...]
    nonzeros: int
    encoding: str
    bytes: int

    @property
    def total(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def sparsity(self) -> float:
        """Share of the elements that are zero."""
        return 1 - self.nonzeros / self.total if self.total else 0.0


def rows_of(model: onnx.ModelProto) -> tuple[TensorRow, ...]:
    """Return a row for each tensor of the main graph, those with the most elements first."""
    found, _ = rebuilt_tensors(model)
    parts = {name for each in found.values() for name in names_of(each.encoded)}
    rows = [*(_row(name, each) for name, each in found.items()), *_stored(model, parts)]
    return tuple(sorted(rows, key=lambda row: -row.total))


def _row(name: str, found: Rebuilt) -> TensorRow:
    return TensorRow(name, found.array.shape, count_nonzeros(found.array), found.label, found.encoded.nbytes)


def _stored(model: onnx.ModelProto, parts: set[str]) -> Iterator[TensorRow]:
    """Yield the rows of dense and sparse initializers that are not parts of encoded tensors."""
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
    """Return the number of non-zero elements; of arrays of other types than numbers, of all elements.

    >>> count_nonzeros(np.array([0.0, 1.0, -0.0])), count_nonzeros(np.array(["", "a"]))
    (1, 2)
    """
    return int(np.count_nonzero(array)) if array.dtype.kind in "fiu" else array.size
