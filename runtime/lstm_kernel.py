"""The kernels of LSTM and plain RNN layers, called on arrays."""

from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_int32, c_size_t, c_void_p
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.runtime.kernels import _ERROR, ACTIVATIONS, _data, _Kernel, _library
from rigl_compress.runtime.packed_weights import pack_matrix

Array = NDArray[Any]


class _LstmShape(Structure):
    _fields_ = (
        ("directions", c_int32),
        ("backward", c_int32 * 2),
        ("gates", c_int32),
        ("activation", c_int32),
    )


class _LstmCall(Structure):
    _fields_ = (
        ("x", c_void_p),
        ("steps", c_size_t),
        ("batch", c_size_t),
        ("initial", c_void_p),
        ("initial_cell", c_void_p),
        ("lengths", c_void_p),
        ("y", c_void_p),
        ("last", c_void_p),
        ("last_cell", c_void_p),
    )


class Lstm:
    """The recurrent half of an LSTM: a sparse matrix [directions · 4 · size, size] for input, output, forget and cell.

    With an activation it is a plain RNN, whose matrix has one row per unit and direction. `backward` has a value per
    direction: true where it runs from the last step to the first.
    """

    def __init__(
        self, matrix: Array, kernels: str = "", *, backward: Sequence[bool] = (False,), activation: str = ""
    ) -> None:
        _declare()
        packed, self.gates = pack_matrix(matrix).tobytes(), 1 if activation else 4
        shape = _LstmShape(len(backward), (c_int32 * 2)(*backward), self.gates, ACTIVATIONS.index(activation or "tanh"))
        self._kernel = _Kernel("lstm", kernels, packed, len(packed), shape)
        self.size, self.directions = matrix.shape[1], len(backward)

    def __call__(
        self,
        x: Array,
        initial: Array | None = None,
        cell: Array | None = None,
        lengths: Array | None = None,
        *,
        threads: int = 1,
    ) -> tuple[Array, Array, Array]:
        """Take the products of the inputs with all biases; return all states, the last ones and the last cells.

        Shapes are those of ONNX: [steps, directions, batch, size] and [directions, batch, size]. Lengths are int32.
        """
        x = np.ascontiguousarray(x, dtype=np.float32)
        steps, batch = x.shape[:2]
        y = np.empty((steps, self.directions, batch, self.size), np.float32)
        last, cells = np.zeros((2, self.directions, batch, self.size), np.float32)
        given = (_data(x), steps, batch, _data(initial), _data(cell), _data(lengths))
        self._kernel.run(_LstmCall(*given, _data(y), _data(last), _data(cells)), threads)
        return y, last, cells


def _declare() -> None:
    library = _library()
    library.rigl_lstm_create.restype = c_void_p
    library.rigl_lstm_create.argtypes = [c_char_p, c_size_t, POINTER(_LstmShape), c_char_p, *_ERROR]
    library.rigl_lstm_run.argtypes = [c_void_p, POINTER(_LstmCall), c_int, *_ERROR]
    library.rigl_lstm_destroy.argtypes = [c_void_p]
