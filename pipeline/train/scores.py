"""Scores of connections: the higher, the more worth having. Pure functions of a layer's view."""

from collections.abc import Callable

from torch import Tensor

from rigl_compress.pipeline.train.layer import View

Score = Callable[[View], Tensor]


def magnitude(view: View) -> Tensor:
    """|θ|: small weights matter least (paper, §3 (3))."""
    return view.weight.abs()


def gradient(view: View) -> Tensor:
    """|∇L|: where the loss would fall fastest (paper, §3 (4)). The gradient of the loss alone, without weight decay."""
    return view.gradient.abs()


def saliency(view: View) -> Tensor:
    """|θ · ∇L|: SNIP's criterion. The gradient alone does far worse (paper, Appendix M)."""
    return (view.weight * view.gradient).abs()


def momentum(view: View) -> Tensor:
    """|running mean of ∇L|: SNFS's criterion, over all places, dead ones too."""
    return view.memory["momentum"].abs()


def chance(view: View) -> Tensor:
    """Any connection is as good as another: SET, DeepR and DSR grow so."""
    return view.uniform()


def standing(view: View) -> Tensor:
    """1 for a connection that has not crossed zero against the sign it was given, else 0 (DeepR)."""
    return (~view.memory["crossed"]).to(view.weight.dtype)


def like_the_living(view: View) -> Tensor:
    """Draw a weight from a normal distribution as wide as the layer's living weights (a variant of birth)."""
    spread = (view.weight.square().sum() / view.mask.sum().clamp(min=1)).sqrt()
    return view.noise() * spread


def down_the_gradient(view: View) -> Tensor:
    """Make a small step against the gradient (a variant of birth)."""
    return view.gradient * -view.options["birth_scale"]
