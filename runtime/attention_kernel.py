"""The kernel of softmax attention, called on arrays."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int, c_size_t, c_void_p
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rigl_compress.runtime.kernels import _MESSAGE_SIZE, _data, _library
from rigl_compress.runtime.tile_arrays import from_tiles, to_tiles

Array = NDArray[Any]


class _Input(Structure):
    _fields_ = (("data", c_void_p), ("features", c_size_t), ("first", c_size_t), ("by_column", c_bool))


class _Mask(Structure):
    _fields_ = (("data", c_void_p), ("pitches", c_size_t * 4))


class _AttentionCall(Structure):
    _fields_ = (
        ("q", _Input),
        ("k", _Input),
        ("v", _Input),
        ("mask", _Mask),
        ("y", c_void_p),
        ("y_by_column", c_bool),
        ("batch", c_size_t),
        ("heads", c_size_t),
        ("queries", c_size_t),
        ("keys", c_size_t),
        ("size", c_size_t),
        ("v_size", c_size_t),
        ("scale", c_float),
    )


@dataclass(frozen=True)
class Attention:
    """Softmax attention of several heads: `softmax(scale * q @ k.T + mask) @ v` for each.

    Sizes are those of a head: of queries and keys, and of values. `first` are the features of q, k and v with which the
    first head begins. Those of q, k, v and y that are in `by_column` are stored in tiles of columns.

    >>> x = np.eye(2, dtype=np.float32)[None]
    >>> Attention(1, (2, 2), 0.0)(x, x, x)
    array([[[0.5, 0.5],
            [0.5, 0.5]]], dtype=float32)
    """

    heads: int
    sizes: tuple[int, int]
    scale: float
    first: tuple[int, int, int] = (0, 0, 0)
    kernels: str = ""
    by_column: Sequence[str] = ()

    def __call__(self, q: Array, k: Array, v: Array, mask: Array | None = None, *, threads: int = 1) -> Array:
        """Take [batch, tokens, features]; the mask is repeated along axes that are 1."""
        stored = [self._stored(each, name in self.by_column) for name, each in zip("qkv", (q, k, v), strict=True)]
        inputs = [
            _Input(_data(each), each.shape[-1], first, name in self.by_column)
            for name, each, first in zip("qkv", stored, self.first, strict=True)
        ]
        scores = (len(q), self.heads, q.shape[1], k.shape[1])
        given = None if mask is None else np.broadcast_to(np.asarray(mask, np.float32), scores)
        y = np.empty((len(q), q.shape[1], self.heads * self.sizes[1]), np.float32)
        sizes = (scores[0], scores[1], scores[2], scores[3], *self.sizes)
        call = _AttentionCall(*inputs, _mask(given), _data(y), "y" in self.by_column, *sizes, self.scale)
        run = _library().rigl_attention_run
        run.argtypes = [POINTER(_AttentionCall), c_char_p, c_int, c_char_p, c_size_t]
        error = ctypes.create_string_buffer(_MESSAGE_SIZE)
        if run(call, self.kernels.encode(), threads, error, len(error)):
            raise RuntimeError(error.value.decode())
        return from_tiles(y.reshape(-1, y.shape[-1]), self.kernels).reshape(y.shape) if "y" in self.by_column else y

    def _stored(self, x: Array, by_column: bool) -> Array:
        x = np.ascontiguousarray(x, np.float32)
        return to_tiles(x.reshape(-1, x.shape[-1]), self.kernels).reshape(x.shape) if by_column else x


def _mask(given: Array | None) -> _Mask:
    """Return a mask that is repeated without a copy: along its axes the elements are none apart."""
    if given is None:
        return _Mask(None, (c_size_t * 4)())
    return _Mask(_data(given), (c_size_t * 4)(*(step // 4 for step in given.strides)))
