"""Randomness without state: a generator per (seed, step, name), so that resumed and replicated runs choose alike."""

from hashlib import blake2b

import torch


def generator(seed: int, step: int, name: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the random generator of one choice.

    >>> a, b = (torch.rand(1, generator=generator(0, step, "fc1")).item() for step in (7, 7))
    >>> a == b, a == torch.rand(1, generator=generator(0, 8, "fc1")).item()
    (True, False)
    """
    digest = blake2b(f"{seed}/{step}/{name}".encode(), digest_size=8).digest()
    place = torch.device(device)
    home = "cpu" if place.type == "meta" else place  # shapes without data have no generator of their own
    return torch.Generator(device=home).manual_seed(int.from_bytes(digest, "little") >> 1)
