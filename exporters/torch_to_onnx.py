"""torch → ONNX: a plain model in memory, with masks applied and a dynamic batch axis, without the exporter's output."""

import io
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from copy import deepcopy
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.exporters.weight_names import restore_names
from rigl_compress.models.nested_tensors import as_inputs, tensors_in
from rigl_compress.models.plain_layers import with_plain_layers

OPSET = 20
Example = Tensor | tuple[Tensor, ...]


def export_graph(
    model: nn.Module, example_input: Example, *, fold_batch_norm: bool = True, opset: int = OPSET
) -> onnx.ModelProto:
    """Return the plain ONNX model of a network in evaluation mode; the network is not changed.

    The first axis of every input is dynamic; in networks with recurrent layers the second one too.

    >>> graph = export_graph(nn.Linear(3, 2), torch.zeros(1, 3)).graph
    >>> [node.op_type for node in graph.node], [tensor.name for tensor in graph.initializer]
    (['Gemm'], ['weight', 'bias'])
    """
    baked = bake(model)
    inputs = tuple(_two_samples(each) for each in as_inputs(example_input))
    check_example(baked, inputs)
    export = _export_recurrent if is_recurrent(baked) else _export
    try:
        with _quietly(), torch.no_grad():
            plain = export(baked, inputs, fold_batch_norm, opset)
    except InputError:
        raise
    except Exception as error:  # the exporter can raise anything
        raise InputError(
            f"torch cannot export the network: {_reason(error)}; rewrite that part of its forward"
        ) from None
    strip(plain)
    restore_names(plain, baked)
    return plain


def check_example(model: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise `InputError` if the network cannot be called with the example input."""
    try:
        with torch.no_grad():
            model(*inputs)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        shapes = ", ".join(str(tuple(each.shape)) for each in inputs)
        reason = first_line(error)
        raise InputError(f"the network cannot be called with an example input of shape {shapes}: {reason}") from None


def _reason(error: BaseException) -> str:
    """Return the first line of the root cause: the errors around it name torch's passes, not the reason."""
    while (cause := error.__cause__ or error.__context__) is not None:
        error = cause
    return first_line(error)


def is_recurrent(model: nn.Module) -> bool:
    """Return whether a network has recurrent layers, whose sequences can have any length."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def bake(model: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode on the CPU with plain weights, masks of `torch.nn.utils` applied.

    >>> layer = prune.l1_unstructured(nn.Linear(4, 4), "weight", amount=0.75)
    >>> [*dict(bake(layer).named_parameters())], int((bake(layer).weight != 0).sum())
    (['bias', 'weight'], 4)
    """
    baked = _copied(with_plain_layers(model)).eval().cpu()
    for module in baked.modules():
        for name in _hooked_names(module, prune.BasePruningMethod, "_tensor_name"):
            prune.remove(module, name)  # type: ignore[no-untyped-call]
        for name in _hooked_names(module, WeightNorm, "name"):
            remove_weight_norm(module, name)
        for name in _hooked_names(module, SpectralNorm, "name"):
            remove_spectral_norm(module, name)
        if parametrize.is_parametrized(module):
            _give_own_class(module)
            for name in list(module.parametrizations):  # type: ignore[arg-type]
                parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    return baked


def _give_own_class(module: nn.Module) -> None:
    """Assign a copy its own class: torch creates one for each parametrized module, and changes it with the module."""
    shared = type(module)
    own = {name: value for name, value in vars(shared).items() if name not in ("__dict__", "__weakref__")}
    module.__class__ = type(shared.__name__, shared.__bases__, own)


def _copied(model: nn.Module) -> nn.Module:
    """Copy a network; masked weights are plain attributes with gradients, which torch copies only when detached."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in vars(module).values():
            if isinstance(value, Tensor) and value.grad_fn is not None:
                memo[id(value)] = value.detach().clone()
    return deepcopy(model, memo)


def _hooked_names(module: nn.Module, kind: type[Any], attribute: str) -> list[str]:
    """Return the names of the weights that hooks of a kind compute before each forward pass."""
    return [getattr(hook, attribute) for hook in module._forward_pre_hooks.values() if isinstance(hook, kind)]


def _two_samples(tensor: Tensor) -> Tensor:
    """Return the example with two samples: torch takes an axis of length 1 for a constant."""
    tensor = tensor.detach().cpu()
    return torch.cat([tensor, tensor]) if tensor.dim() and len(tensor) == 1 else tensor


def _names(word: str, count: int) -> list[str]:
    return [word] if count == 1 else [f"{word}{number}" for number in range(count)]


def _export(model: nn.Module, inputs: tuple[Tensor, ...], fold: bool, opset: int) -> onnx.ModelProto:
    batch = torch.export.Dim("batch")
    program = torch.onnx.export(
        model,
        inputs,
        dynamo=True,
        dynamic_shapes=tuple({0: batch} if each.dim() else None for each in inputs),
        opset_version=opset,
        optimize=fold,
        verbose=False,
        input_names=_names("input", len(inputs)),
        output_names=_names("output", _outputs(model, inputs)),
    )
    assert program is not None
    proto: onnx.ModelProto = program.model_proto
    return proto


def _export_recurrent(model: nn.Module, inputs: tuple[Tensor, ...], fold: bool, opset: int) -> onnx.ModelProto:
    """Export by tracing: torch.export silently fixes sequences to the length of the example."""
    first = next(module for module in model.modules() if isinstance(module, nn.RNNBase))
    axes = {0: "batch", 1: "sequence"} if first.batch_first else {0: "sequence", 1: "batch"}
    names = _names("input", len(inputs))
    outputs = _names("output", _outputs(model, inputs))
    file = io.BytesIO()
    torch.onnx.export(
        model,
        inputs,
        file,  # type: ignore[arg-type]  # annotated as a path, documented as a file too
        dynamo=False,
        # PRESERVE keeps the batch normalisation of a network in evaluation mode.
        training=torch.onnx.TrainingMode.EVAL if fold else torch.onnx.TrainingMode.PRESERVE,
        opset_version=opset,
        input_names=names,
        output_names=outputs,
        dynamic_axes={name: _axes(each, axes) for name, each in zip(names, inputs, strict=True)},
    )
    return onnx.load_from_string(file.getvalue())


def _axes(tensor: Tensor, axes: dict[int, str]) -> dict[int, str]:
    return {axis: name for axis, name in axes.items() if axis < tensor.dim()}


def _outputs(model: nn.Module, inputs: tuple[Tensor, ...]) -> int:
    return len([*tensors_in(model(*inputs))])


def strip(model: onnx.ModelProto) -> None:
    """Remove the exporter's annotations, 2 to 25 KB."""
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    del model.graph.value_info[:]
    model.doc_string = model.graph.doc_string = ""
    for part in (*model.graph.node, *model.graph.initializer, *model.graph.input, *model.graph.output):
        part.doc_string = ""
        del part.metadata_props[:]


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the warnings, log lines and printed programs of the exporter."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
