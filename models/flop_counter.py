"""FLOPs of a torch network: hooks on its layers record shapes while it runs on an example input."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError, did_you_mean
from rigl_compress.models.activation_products import recording_products
from rigl_compress.models.attention_flops import attention_uses
from rigl_compress.models.flop_rules import FLOP_RULES, Shape
from rigl_compress.models.layer_flops import FlopReport, LayerUse, at_positions, flop_report
from rigl_compress.models.nested_tensors import as_call, tensors_in
from rigl_compress.models.plain_layers import with_plain_layers
from rigl_compress.models.sparse_parameters import TRANSPOSED, Part, qualified_name, sparse_layers, weight_names

# By parameter name: a boolean mask, or a density for the fractional counts of published tables.
Active = Mapping[str, Tensor | float]


# The types of layers that are counted, and the rule for each, a key of `FLOP_RULES`.
LAYER_KINDS: dict[type[nn.Module], str] = {
    nn.Linear: "linear",
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), "conv"),
    **dict.fromkeys(TRANSPOSED, "transposed conv"),
    **dict.fromkeys((nn.GRU, nn.LSTM, nn.RNN, nn.GRUCell, nn.LSTMCell, nn.RNNCell), "recurrent"),
    nn.Embedding: "embedding",
}
# "We omit the FLOPs needed for batch normalization" (paper, Appendix H); the other norms are treated alike.
FREE = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)
# The weights that are multiplied with the layer's input; all others of a recurrent layer with a hidden state.
_INPUT_WEIGHTS = ("weight", "weight_ih", "weight_ih_l0", "weight_ih_l0_reverse")


def count_flops(
    model: nn.Module,
    example_input: Tensor | tuple[Any, ...] | Mapping[str, Any],
    active: Active | None = None,
    convention: str = "multiply-add",
    positions: Mapping[str, int] | None = None,
) -> FlopReport:
    """Count the FLOPs of a forward pass on the example input; pass a batch of one for the cost per sample.

    `active` maps parameter names to masks or densities, as a `Topology` does; other parameters are dense. `positions`
    overrides, by layer name, how often each weight is used. The model is not changed; it may be on the `meta` device.

    >>> with torch.device("meta"):
    ...     model, image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU()), torch.empty(1, 3, 32, 32)
    >>> report = count_flops(model, image, {"0.weight": 0.1})
    >>> report.dense, round(report.sparse), report.layers[0].positions
    (442368, 44237, 1024)
    """
    model = with_plain_layers(model)
    uses = at_positions(layer_uses(model, example_input), positions or {})
    report = flop_report(uses, _nonzeros(model, uses, active or {}), convention)
    return replace(report, uncounted=_uncounted(model, {use.name for use in uses}))


def layer_uses(model: nn.Module, example_input: Tensor | tuple[Any, ...] | Mapping[str, Any]) -> tuple[LayerUse, ...]:
    """Run the model on the example input and return each use of a weight tensor, in the order of the calls.

    >>> gru = nn.GRU(4, 8)
    >>> [(use.parameter, use.positions, use.input_gradient) for use in layer_uses(gru, torch.zeros(5, 1, 4))]
    [('weight_ih_l0', 5, False), ('weight_hh_l0', 5, True)]
    """
    uses: list[LayerUse] = []
    names = {id(parameter): name for name, parameter in model.named_parameters()}  # a tied weight has one name
    # With gradients, attention takes no fast path: it calls its layers, and the hooks on them.
    with _restored(model), _recording(model, names, uses), torch.inference_mode(False), torch.enable_grad():
        model.eval()
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.is_floating_point() or parameter.is_complex())
        args, kwargs = as_call(example_input)
        model(*map(_copied, args), **{name: _copied(value) for name, value in kwargs.items()})
    return tuple(uses)


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore what counting changes: training flags, gradient flags, random state."""
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
def _recording(model: nn.Module, names: Mapping[int, str], uses: list[LayerUse]) -> Iterator[None]:
    """Append the uses of weights in every call of a layer that has a rule, and the products of activations."""
    whole = {id(each.out_proj) for each in model.modules() if isinstance(each, nn.MultiheadAttention)}
    hooks = [
        module.register_forward_hook(recorder, with_kwargs=True)
        for path, module in model.named_modules()
        if id(module) not in whole and (recorder := _recorder(path, module, names, uses)) is not None
    ]
    try:
        with recording_products(model, uses):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _recorder(
    path: str, module: nn.Module, names: Mapping[int, str], uses: list[LayerUse]
) -> Callable[..., None] | None:
    """Return the hook of a layer, None for one without a rule."""
    kind = _kind(module)

    def record(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        uses.extend(_weight_uses(path, module, names, ((args, kwargs), output)))

    def record_attention(module: nn.MultiheadAttention, args: Any, kwargs: Any, output: Any) -> None:
        del output
        uses.extend(attention_uses(path, module, args, kwargs, names))

    return record_attention if isinstance(module, nn.MultiheadAttention) else record if kind else None


def _weight_uses(
    path: str, module: nn.Module, names: Mapping[int, str], call: tuple[tuple[Any, Any], Any]
) -> Iterator[LayerUse]:
    """Yield the uses of a layer's weights in a call, given as ((arguments, keywords), output)."""
    (args, kwargs), output = call
    # All parameters require gradients here, so an input that requires none depends on none of them.
    depends = any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))
    data, result = _first_shape((kwargs.get("input"), args, kwargs)), _first_shape(output)
    kind = _kind(module)
    for weight, tensor in _weights(module).items():
        yield LayerUse(
            name=_label(path, module),
            kind=kind,
            parameter=names.get(id(tensor), qualified_name(path, weight)),
            weights=tensor.numel(),
            channels=tensor.shape[0],
            positions=FLOP_RULES[kind](data, tensor.shape, result).positions(tensor.shape[0]),
            input_gradient=depends or weight not in _INPUT_WEIGHTS,
        )


def _kind(module: nn.Module) -> str:
    return next((kind for layer, kind in LAYER_KINDS.items() if isinstance(module, layer)), "")


def _first_shape(values: Any) -> Shape:
    """Return the shape of the first tensor: of a packed sequence, of its data."""
    return next((tensor.shape for tensor in tensors_in(values)), ())


def _weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: getattr(module, name) for name in weight_names(module) or ["weight"]}  # an embedding has one too


def _label(path: str, module: nn.Module) -> str:
    return path or type(module).__name__  # the network itself has no path


def _uncounted(model: nn.Module, counted: set[str]) -> tuple[str, ...]:
    owners = [(path, module) for path, module in model.named_modules() if any(True for _ in module.parameters(False))]
    labels = (_label(path, module) for path, module in owners if not isinstance(module, FREE))
    return tuple(label for label in labels if label not in counted)


def _nonzeros(model: nn.Module, uses: tuple[LayerUse, ...], active: Active) -> dict[str, float]:
    """Return the number of active weights, by the names in the uses: of parameters, or of packed projections."""
    parameters = dict(model.named_parameters(remove_duplicate=False))  # a tied weight has several names
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    weights = {use.parameter: use.weights for use in uses if use.parameter}
    found: dict[str, float] = {}
    for alias, density in active.items():
        name = names[id(parameters[alias])] if alias in parameters else alias
        if name not in weights and alias not in parameters:
            raise InputError(f"the model has no parameter {alias!r}: {did_you_mean(alias, {*parameters, *weights})}")
        if isinstance(density, Tensor):
            _check_mask(alias, density, parameters.get(alias, density))
        for counted, part in _counted(name, model, weights).items():
            found[counted] = int(part.of(density).sum()) if isinstance(density, Tensor) else density * weights[counted]
    return found


def _counted(name: str, model: nn.Module, weights: Mapping[str, int]) -> dict[str, Part]:
    """Return the parts of a parameter that are counted by themselves: all of it, or packed projections, or nothing."""
    if name in weights:
        return {name: Part(name)}
    return {key: part for key, part in sparse_layers(model).items() if part.parameter == name and key in weights}


def _check_mask(name: str, mask: Tensor, weight: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise InputError(f"mask {name!r} has dtype {mask.dtype}, expected torch.bool: pass `mask != 0`")
    if mask.shape != weight.shape:
        found, expected = tuple(mask.shape), tuple(weight.shape)
        raise InputError(f"mask {name!r} has shape {found}, expected {expected}: it belongs to another model")
