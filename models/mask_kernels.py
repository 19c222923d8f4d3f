"""Dense tensors times masks of a byte for each element: at once by a compiled kernel where it can, else by torch."""

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, Structure, c_char_p, c_int, c_size_t, c_void_p
from functools import lru_cache

import torch
from torch import Tensor

from rigl_compress.core.tensor_blocks import mask_in_place
from rigl_compress.models.training_kernels import training_library

Masked = tuple[Tensor, Tensor]  # a tensor, and its boolean mask of the same shape


class _MaskedTensor(Structure):  # of native/train_mask.h; native/train_api.cpp checks its size
    _fields_ = (("values", c_void_p), ("active", c_void_p), ("count", c_size_t))


@lru_cache
def _library() -> ctypes.CDLL | None:
    library = training_library()
    if library is not None:
        library.rigl_train_mask.argtypes = [POINTER(_MaskedTensor), c_size_t, c_char_p, c_int, c_char_p, c_size_t]
    return library


def multiply_by_masks(tensors: Sequence[Masked], kernels: str = "") -> None:
    """Multiply tensors by their masks, in place: what is inactive becomes zero (infinities and NaN become NaN).

    >>> weight = torch.tensor([1.0, 2.0, 3.0])
    >>> multiply_by_masks([(weight, torch.tensor([True, False, True]))])
    >>> weight.tolist()
    [1.0, 0.0, 3.0]
    """
    library, compiled, rest = _library(), list[_MaskedTensor](), list[Masked]()
    for tensor, mask in tensors:
        if library is not None and _is_simple(tensor, mask):
            compiled.append(_MaskedTensor(tensor.data_ptr(), mask.data_ptr(), tensor.numel()))
        else:
            rest.append((tensor, mask))
    if library is not None and compiled:
        _multiply(library, compiled, kernels)
    for tensor, mask in rest:
        mask_in_place(tensor, mask)


def _multiply(library: ctypes.CDLL, tensors: Sequence[_MaskedTensor], kernels: str) -> None:
    calls = (_MaskedTensor * len(tensors))(*tensors)
    if library.rigl_train_mask(calls, len(tensors), kernels.encode(), torch.get_num_threads(), None, 0):
        raise RuntimeError(f"cannot mask weights: no memory, or no kernels {kernels!r} on this machine")


def _is_simple(tensor: Tensor, mask: Tensor) -> bool:
    floats = tensor.dtype == torch.float32 and tensor.is_cpu and mask.is_cpu
    return floats and tensor.is_contiguous() and mask.is_contiguous()
