"""Scores of connections, by which updates drop the lowest and grow the highest. Pure functions of a layer's view."""

from collections.abc import Callable

from torch import Tensor

from rigl_compress.sparsity.layer_state import LayerView

Score = Callable[[LayerView], Tensor]


def magnitude(view: LayerView) -> Tensor:
    """|θ|: small weights matter least (paper, §3 (3))."""
    return view.weight.abs()


def gradient(view: LayerView) -> Tensor:
    """|∇L|: where the loss would fall fastest (paper, §3 (4)). The gradient of the loss alone, without weight decay."""
    return view.gradient.abs()


def saliency(view: LayerView) -> Tensor:
    """|θ · ∇L|: SNIP's criterion. The gradient alone does far worse (paper, Appendix M)."""
    return (view.weight * view.gradient).abs()


def momentum(view: LayerView) -> Tensor:
    """|running mean of ∇L|: SNFS's criterion, for all connections, inactive ones too."""
    return view.memory["momentum"].abs()


def random(view: LayerView) -> Tensor:
    """A random score: SET, DeepR and DSR grow by it."""
    return view.uniform()


def not_crossed(view: LayerView) -> Tensor:
    """1 for a connection whose weight has not crossed zero against its sign, else 0 (DeepR)."""
    return (~view.memory["crossed"]).to(view.weight.dtype)


# The score of a connection depends on nothing but this connection (and on random numbers, drawn in order): such scores
# can be computed for one block of a layer at a time.
BY_CONNECTION = frozenset({magnitude, gradient, saliency, momentum, random, not_crossed})


def random_like_active(view: LayerView) -> Tensor:
    """Draw weights from a normal distribution as wide as the layer's active weights (a variant of `new_weights`)."""
    spread = (view.weight.square().sum() / view.mask.sum().clamp(min=1)).sqrt()
    return view.noise() * spread


def against_gradient(view: LayerView) -> Tensor:
    """A small step against the gradient (a variant of `new_weights`)."""
    return view.gradient * -view.options["new_weight_scale"]
