"""The device that a run trains on."""

from contextlib import suppress

import torch

from rigl_compress.core.errors import InputError


def find_device(name: str) -> torch.device:
    """Resolve auto | cpu | cuda | mps, with an index where there are several.

    >>> find_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    if name.partition(":")[0] in ("cpu", "cuda", "mps"):
        with suppress(RuntimeError, AssertionError):
            return torch.empty(1, device=name).device
    raise InputError(f"device {name!r} is not available here: use auto, cpu, cuda or mps")
