"""Which layers train on sparse kernels, and why the others stay masked."""

from collections.abc import Collection, Mapping

import torch
from torch import distributed, nn

from rigl_compress.core.errors import InputError
from rigl_compress.models.innermost_convolution import is_cheap
from rigl_compress.models.sparse_modules import layer_shape
from rigl_compress.models.sparse_parameters import Part, sparse_layers, sparse_parameters
from rigl_compress.models.training_kernels import training_library
from rigl_compress.sparsity import connection_quotas as quotas
from rigl_compress.sparsity import connection_scores as scores
from rigl_compress.sparsity.methods import Method
from rigl_compress.sparsity.sparsity_config import Kernels

# Denser layers are faster as dense products of torch, which the masked path computes (benchmarks/sparse_training.py).
CROSSOVER = 0.4
FULL = "it has all of its connections"


def masked_reasons(
    model: nn.Module, method: Method, densities: Mapping[str, float], kernels: Kernels
) -> dict[str, str]:
    """Return why layers are not to train on sparse kernels, by name; layers of all connections need no mask.

    >>> from rigl_compress.sparsity.methods import METHODS
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.LSTM(4, 4))
    >>> densities = {name: 0.5 if name == "0.weight" else 0.1 for name in sparse_layers(model)}
    >>> reasons = masked_reasons(model, METHODS["rigl"], densities, "auto")
    >>> [*reasons][:2], reasons["0.weight"]
    (['0.weight', '2.weight_ih_l0.input'], 'a density of 0.5 is faster dense')
    """
    if kernels == "masked":
        return dict.fromkeys(sparse_layers(model), 'kernels="masked"')
    every = _reason_for_all(method)
    if every:
        return dict.fromkeys(sparse_layers(model), every)
    users = _users(model)
    found = {
        name: _of_density(densities[name], kernels) or _of_layer(model, part, users)
        for name, part in sparse_layers(model).items()
    }
    if kernels == "auto":
        found |= _among_dense(model, found)
    return {name: reason for name, reason in found.items() if reason}


def _reason_for_all(method: Method) -> str:
    if training_library() is None:
        return "the compiled kernels are missing or do not load: install rigl-compress with a C++ compiler"
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        return "several processes average dense gradients"
    return "" if _has_kernels(method) else f"method {method.name!r} needs weights or gradients of all connections"


def _has_kernels(method: Method) -> bool:
    """Whether a method needs no more of inactive connections than their scores, and keeps the number of active ones."""
    plain = method.observe is None and method.constrain is None and method.new_weights is None
    whole = method.start is None or method.dense or method.straight_through or method.gating is not None
    scored = method.drop is scores.magnitude and method.grow in (None, scores.gradient, scores.random)
    return plain and scored and not whole and method.quota in (quotas.swap, quotas.swap_rounding_up)


def _of_density(density: float, kernels: Kernels) -> str:
    if density >= 1:
        return FULL
    return f"a density of {density:.2g} is faster dense" if kernels == "auto" and density > CROSSOVER else ""


def _among_dense(model: nn.Module, found: Mapping[str, str]) -> dict[str, str]:
    """Return why sparse convolutions are not worth converting images for: most of their neighbours stay dense."""
    convolutions = {
        name: module
        for name, part in sparse_layers(model).items()
        if isinstance(module := model.get_submodule(part.parameter.rpartition(".")[0]), nn.Conv2d)
    }
    sparse = [name for name in convolutions if not found[name]]
    dense = [name for name, module in convolutions.items() if found[name] and not is_cheap(module)]
    return dict.fromkeys(sparse, "most convolutions of the network are dense") if len(sparse) < len(dense) else {}


def _of_layer(model: nn.Module, part: Part, users: Mapping[int, int]) -> str:
    module, weight = model.get_submodule(part.parameter.rpartition(".")[0]), sparse_parameters(model)[part.parameter]
    if type(module) not in (nn.Linear, nn.Conv2d) or getattr(module, "padding_mode", "zeros") != "zeros":
        return f"a {type(module).__name__} has no sparse kernel"
    if weight.dtype != torch.float32 or weight.device.type not in ("cpu", "meta"):
        return f"it is {weight.dtype} on {weight.device.type}, kernels take float32 on the CPU"
    if users[id(weight)] > 1:
        return "several layers share its weight"
    if not weight.requires_grad:
        return "it is not trained"
    try:
        layer_shape(module)
    except InputError as error:
        return str(error)
    return ""


def _users(model: nn.Module) -> dict[int, int]:
    """Return how many layers use each parameter."""
    found: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                found[id(parameter)] = found.get(id(parameter), 0) + 1
    return found


def kernel_notes(reasons: Mapping[str, str], layers: Collection[str], kernels: Kernels) -> tuple[str, ...]:
    """Return what a run says about its kernels, unless all layers are to be masked.

    >>> kernel_notes({"2.weight": "a density of 0.5 is faster dense"}, ["0.weight", "2.weight"], "auto")
    ('sparse kernels train 0.weight; 2.weight stays masked: a density of 0.5 is faster dense',)
    >>> kernel_notes({}, ["0.weight"], "masked")
    ()
    """
    if kernels == "masked":
        return ()
    sparse = [name for name in layers if name not in reasons]
    notes = [f"sparse kernels train {', '.join(sparse) or 'no layer'}"]
    masked = [f"{name} stays masked: {reason}" for name, reason in reasons.items() if reason != FULL]
    return ("; ".join([*notes, *masked]),)


def masked_warnings(reasons: Mapping[str, str], densities: Mapping[str, float], kernels: Kernels) -> list[str]:
    """Return the warning about layers that were to train on sparse kernels and stay masked."""
    asked = {name: reason for name, reason in reasons.items() if densities[name] < 1}
    if kernels != "sparse" or not asked:
        return []
    by_reason: dict[str, list[str]] = {}
    for name, reason in asked.items():
        by_reason.setdefault(reason, []).append(name)
    listed = "; ".join(f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    return [f"these layers train as masked dense ones: {listed}"]
