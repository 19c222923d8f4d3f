"""What an update of one layer comes to: which connections live, and which of them live on unbroken."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rigl_compress.pipeline.train.layer import View
from rigl_compress.pipeline.train.methods import Method
from rigl_compress.pipeline.train.rewire import best, marked, rewire


@dataclass(frozen=True)
class Choice:
    """The places of the living, and the mask of those that keep weight and optimizer state."""

    places: Tensor
    survivors: Tensor


def choose(method: Method, view: View, places: Tensor, keep: int, new: int) -> Choice:
    """Choose connections by a method's scores; `places` are the living ones, of which `keep` stay and `new` are added.

    Where as many live as before and the scores say nothing (a gradient that overflowed in half precision, or that is
    zero everywhere), all stay. That is decided on the device.
    """
    drop, grow = method.drop(view), None if method.grow is None else method.grow(view)
    if method.straight_through:
        chosen = unbroken = best(drop, keep)
    else:
        drop = drop.reshape(-1)[places]
        chosen = rewire(places, drop, grow, keep, new)
        unbroken = chosen if method.keeps_regrown else rewire(places, drop, None, keep, 0)
    survivors = view.mask & marked(unbroken, view.mask.shape)
    if len(chosen) == len(places):
        sure = _finite(drop, grow) & _stirred(view, grow)
        chosen, survivors = torch.where(sure, chosen, places), torch.where(sure, survivors, view.mask)
    return Choice(chosen, survivors)


def known(method: Method, view: View, places: Tensor) -> Tensor:
    """Give two booleans: the scores are finite; the layer has a gradient and growth has something to go by."""
    drop, grow = method.drop(view), None if method.grow is None else method.grow(view)
    return torch.stack([_finite(drop.reshape(-1)[places], grow), _stirred(view, grow)])


def _finite(drop: Tensor, grow: Tensor | None) -> Tensor:
    return drop.isfinite().all() if grow is None else drop.isfinite().all() & grow.isfinite().all()


def _stirred(view: View, grow: Tensor | None) -> Tensor:
    return view.gradient.any() if grow is None else view.gradient.any() & grow.any()
