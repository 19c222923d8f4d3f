"""What a network costs in a forward pass: its layers are watched while it runs on an example input.

Convolutions count each weight at each place of the output, also where the kernel reaches into the padding, as all
published tables do.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.models.errors import InputError, did_you_mean
from rigl_compress.models.layer_costs import FlopReport, LayerUse, at_positions, flop_report

# What is alive of a parameter: a boolean mask, or a share for the fractional counts of published tables.
Kept = Mapping[str, Tensor | float]


@dataclass(frozen=True)
class LayerRule:
    """How often a type of layer uses each of its weights: (the layer, its output) → positions."""

    kind: str
    types: tuple[type[nn.Module], ...]
    positions: Callable[[Any, Any], int]


def _outputs_per_channel(module: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d, output: Tensor) -> int:
    return output.numel() // module.weight.shape[0]


def _steps(module: nn.RNNBase, output: Any) -> int:
    del module
    sequence = next(_tensors(output))  # (…, hidden): the first output, in a packed sequence its data
    return sequence.numel() // sequence.shape[-1]


def _never(module: nn.Module, output: Tensor) -> int:
    del module, output
    return 0


RULES = (
    LayerRule("linear", (nn.Linear,), _outputs_per_channel),
    LayerRule("conv", (nn.Conv1d, nn.Conv2d, nn.Conv3d), _outputs_per_channel),
    LayerRule("recurrent", (nn.GRU, nn.LSTM, nn.RNN), _steps),
    LayerRule("embedding", (nn.Embedding,), _never),
)
# "We omit the FLOPs needed for batch normalization" (paper, Appendix H); the other norms are treated alike.
FREE = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
# The weights that meet the layer's input; all others of a recurrent layer meet a hidden state.
_MEETS_INPUT = ("weight", "weight_ih_l0", "weight_ih_l0_reverse")


def count_flops(
    model: nn.Module,
    example_input: Tensor | tuple[Any, ...],
    kept: Kept | None = None,
    convention: str = "multiply-add",
    positions: Mapping[str, int] | None = None,
) -> FlopReport:
    """Count the FLOPs of a forward pass on the example input; give a batch of one for the cost per sample.

    `kept` says by parameter name what is alive: a `Topology`, boolean masks, or densities; what it does not name is
    dense. `positions` overrides, by layer name, how often each weight is used. The model is left as it was; it may be
    on the `meta` device.

    >>> with torch.device("meta"):
    ...     model, image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), torch.empty(1, 3, 32, 32)
    >>> report = count_flops(model, image, {"0.weight": 0.1})
    >>> report.dense, round(report.sparse), report.layers[0].positions
    (442368, 44237, 1024)
    """
    uses = at_positions(layer_uses(model, example_input), positions or {})
    report = flop_report(uses, _nonzeros(model, uses, kept or {}), convention)
    return replace(report, uncounted=_uncounted(model, {use.name for use in uses}))


def layer_uses(model: nn.Module, example_input: Tensor | tuple[Any, ...]) -> tuple[LayerUse, ...]:
    """Run the model on the example input and give each use of a weight tensor, in the order of the calls.

    >>> gru = nn.GRU(4, 8)
    >>> [(use.parameter, use.positions, use.input_gradient) for use in layer_uses(gru, torch.zeros(5, 1, 4))]
    [('weight_ih_l0', 5, False), ('weight_hh_l0', 5, True)]
    """
    uses: list[LayerUse] = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}  # a tied weight has one name
    with _as_it_was(model), _watching(model, names, uses), torch.inference_mode(False), torch.enable_grad():
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
        inputs = example_input if isinstance(example_input, tuple) else (example_input,)
        model(*(value.detach().clone() if isinstance(value, Tensor) else value for value in inputs))
    return tuple(uses)


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """Put back what counting changes: training flags, gradient flags, random state."""
    training = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    gpus = sorted({parameter.device.index for parameter, _ in trained if parameter.device.type == "cuda"})
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        for module, flag in training:
            module.training = flag
        for parameter, flag in trained:
            parameter.requires_grad_(flag)


@contextmanager
def _watching(model: nn.Module, names: Mapping[int, str], uses: list[LayerUse]) -> Iterator[None]:
    """Note the uses of every call of a layer that has a rule."""

    def watcher(path: str, rule: LayerRule) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            # All parameters are in training here, so an input that needs no gradient depends on none of them.
            error = any(tensor.requires_grad for tensor in _tensors((args, kwargs)))
            uses.extend(
                LayerUse(
                    name=_label(path, module),
                    kind=rule.kind,
                    parameter=names.get(id(tensor), _join(path, weight)),
                    weights=tensor.numel(),
                    channels=tensor.shape[0],
                    positions=rule.positions(module, output),
                    input_gradient=error or weight not in _MEETS_INPUT,
                )
                for weight, tensor in _weights(module).items()
            )

        return note

    rules = [(path, module, _rule(module)) for path, module in model.named_modules()]
    hooks = [
        module.register_forward_hook(watcher(path, rule), with_kwargs=True) for path, module, rule in rules if rule
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _rule(module: nn.Module) -> LayerRule | None:
    return next((rule for rule in RULES if isinstance(module, rule.types)), None)


def _weights(module: Any) -> dict[str, Tensor]:
    if isinstance(module, nn.RNNBase):
        return {name: weight for name, weight in module.named_parameters(recurse=False) if name.startswith("weight_")}
    return {"weight": module.weight}


def _tensors(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, Mapping):
        yield from _tensors(tuple(values.values()))
    elif isinstance(values, tuple | list):  # a packed sequence is a tuple too
        for value in values:
            yield from _tensors(value)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _label(path: str, module: nn.Module) -> str:
    return path or type(module).__name__  # the network itself has no path


def _uncounted(model: nn.Module, counted: set[str]) -> tuple[str, ...]:
    owners = [(path, module) for path, module in model.named_modules() if any(True for _ in module.parameters(False))]
    labels = (_label(path, module) for path, module in owners if not isinstance(module, FREE))
    return tuple(label for label in labels if label not in counted)


def _nonzeros(model: nn.Module, uses: tuple[LayerUse, ...], kept: Kept) -> dict[str, float]:
    """Give the number of weights alive, by the parameter name the rows use."""
    parameters = dict(model.named_parameters(remove_duplicate=False))  # any name of a tied weight will do
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = {use.parameter: use.weights for use in uses}
    found: dict[str, float] = {}
    for alias, alive in kept.items():
        name = names[id(parameters[alias])] if alias in parameters else alias
        if name not in weights and alias not in parameters:
            raise InputError(f"the model has no parameter {alias!r}: {did_you_mean(alias, {*parameters, *weights})}")
        if isinstance(alive, Tensor):
            _check_mask(alias, alive, parameters.get(alias, alive))
        if name in weights:
            found[name] = int(alive.sum()) if isinstance(alive, Tensor) else alive * weights[name]
    return found


def _check_mask(name: str, mask: Tensor, weight: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise InputError(f"mask {name!r} has dtype {mask.dtype}, expected torch.bool: pass `mask != 0`")
    if mask.shape != weight.shape:
        found, expected = tuple(mask.shape), tuple(weight.shape)
        raise InputError(f"mask {name!r} has shape {found}, the model's is {expected}: it belongs to another model")
