"""The paper's size of a sparse network: four bytes per number, and a bit-mask for each sparse layer.

This is the convention of the table in Appendix B, an estimate: `exporters/encodings.py` has the sizes of files.
"""

from collections.abc import Mapping

from torch import Tensor

from rigl_compress.core.errors import InputError

BYTES_PER_NUMBER = 4  # "parameters are represented as floats, i.e. 4 bytes" (paper, Appendix B)


def bitmask_bytes(nonzeros: float, biases: int = 0, mask_bits: int = 0) -> float:
    """Return the bytes of weights, biases and a bit-mask, in fractions of a byte as in the paper.

    >>> bitmask_bytes(nonzeros=6309, biases=179, mask_bits=408 * 100 + 100 * 69)
    31914.5
    """
    return BYTES_PER_NUMBER * (nonzeros + biases) + mask_bits / 8


def layer_bytes(weights: int, nonzeros: float, biases: int = 0) -> float:
    """Return the bytes of one layer, with a bit-mask only if some of its weights are zero.

    >>> layer_bytes(weights=690, nonzeros=690, biases=10), layer_bytes(weights=800, nonzeros=80, biases=10)
    (2800.0, 460.0)
    """
    return bitmask_bytes(nonzeros, biases, weights if nonzeros < weights else 0)


def network_bytes(parameters: Mapping[str, Tensor], topology: Mapping[str, Tensor]) -> float:
    """Return the bytes of a network, from its parameters and the masks of the sparse ones by name.

    >>> import torch
    >>> layer = torch.nn.Linear(4, 2)
    >>> network_bytes(dict(layer.named_parameters()), {"weight": torch.eye(2, 4, dtype=torch.bool)})
    17.0
    """
    for name in topology:
        if name not in parameters or topology[name].shape != parameters[name].shape:
            raise InputError(f"the topology's {name!r} does not fit the parameters: it belongs to another model")
    active = {name: int(topology[name].sum()) if name in topology else p.numel() for name, p in parameters.items()}
    return sum(layer_bytes(parameter.numel(), active[name]) for name, parameter in parameters.items())
