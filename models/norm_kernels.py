"""The compiled kernels of batch normalization in training, for activations with the batch innermost."""

import ctypes
from ctypes import Structure, byref, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass

import torch
from torch import Tensor

from rigl_compress.models.training_kernels import loaded_library

_MESSAGE_SIZE = 200


class _NormCall(Structure):  # as in native/train_norm.h
    _fields_ = (
        ("channels", c_int64),
        ("size", c_int64),
        *(
            (name, c_void_p)
            for name in ("x", "weight", "bias", "y", "mean", "variance", "dy", "dx", "dweight", "dbias")
        ),
        ("epsilon", c_float),
        ("clipped", c_int32),
    )


@dataclass(frozen=True)
class NormInput:
    """What is normalised, contiguous [channels, …], and the statistics of each channel, which the forward pass sets."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    mean: Tensor
    variance: Tensor
    epsilon: float


def norm_forward(given: NormInput, kernels: str = "") -> Tensor:
    """Return the output, and set mean and biased variance."""
    y = torch.empty(given.x.shape)
    _run(given, {"y": y}, 0, backward=False, kernels=kernels)
    return y


def norm_backward(given: NormInput, dy: Tensor, *, clipped: bool, kernels: str = "") -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of input, weight and bias; `clipped`: `dy` is the gradient of the rectified output."""
    dx, dweight, dbias = torch.empty(given.x.shape), torch.empty(len(given.x)), torch.empty(len(given.x))
    results = {"dy": dy, "dx": dx, "dweight": dweight, "dbias": dbias}
    _run(given, results, int(clipped), backward=True, kernels=kernels)
    return dx, dweight, dbias


def rectified(y: Tensor) -> Tensor:
    """Return the ReLU of a tensor, in memory of huge pages where the system has them."""
    result = torch.empty_like(y)
    loaded_library().rigl_train_advise(result.data_ptr(), result.numel())
    return torch.clamp_min(y, 0, out=result)


def _run(given: NormInput, others: dict[str, Tensor], clipped: int, *, backward: bool, kernels: str) -> None:
    named = {"x": given.x, "weight": given.weight, "bias": given.bias, "mean": given.mean, "variance": given.variance}
    pointers = {name: tensor.data_ptr() for name, tensor in (named | others).items() if tensor is not None}
    size = given.x.numel() // max(1, len(given.x))
    call = _NormCall(channels=len(given.x), size=size, epsilon=given.epsilon, clipped=clipped, **pointers)
    error = ctypes.create_string_buffer(_MESSAGE_SIZE)
    threads = torch.get_num_threads()
    if loaded_library().rigl_train_norm(byref(call), int(backward), kernels.encode(), threads, error, _MESSAGE_SIZE):
        raise RuntimeError(f"sparse kernels: {error.value.decode()}")
