"""Whether a network fits the data: one sample is passed through it before anything is written."""

import torch
from torch import nn

from rigl_compress.core.errors import InputError, first_line
from rigl_compress.data.dataset import DataSet
from rigl_compress.models.model_registry import ModelSpec


def check_input(model: nn.Module, data: DataSet, spec: ModelSpec) -> None:
    """Raise unless a network takes the inputs of the data, and answers as many classes for each target."""
    _check_padding(model, data, spec)
    first = next(data.train[:1].in_order(1), None)
    if first is None:
        raise InputError(f"the first training sample of {data.name} cannot be read: replace it, or remove it")
    inputs, targets = first
    try:
        with torch.no_grad():
            answers = model.eval()(inputs.cpu())
    except Exception as error:  # code of a network can raise anything
        reason = first_line(error)
        raise InputError(f"model {spec.name!r} does not take inputs of shape {data.input_shape}: {reason}") from None
    if not isinstance(answers, torch.Tensor):
        raise InputError(
            f"model {spec.name!r} returns a {type(answers).__name__}, expected a tensor: name a network with one"
        )
    if answers.shape[:-1] != targets.shape:
        raise InputError(
            f"model {spec.name!r} returns outputs of shape {tuple(answers.shape)} for {data.name}, "
            f"expected {(*targets.shape, data.classes)}: use a model made for such data{_or_another_task(spec)}"
        )
    if answers.shape[-1] != data.classes:
        raise InputError(f"model {spec.name!r} has {answers.shape[-1]} outputs, {data.name} has {data.classes} classes")


def _or_another_task(spec: ModelSpec) -> str:
    return ", or set model.options.task" if spec.network.library == "transformers" else ""


def _check_padding(model: nn.Module, data: DataSet, spec: ModelSpec) -> None:
    """Raise where a network masks another token than the tokenizer pads with: it would attend to padding."""
    padding = data.preprocessing.get("padding")
    own = getattr(getattr(model, "config", None), "pad_token_id", padding)
    if padding is not None and own != padding and len(data.input_shape) == 1:
        raise InputError(
            f"model {spec.name!r} takes token {own} for padding, the tokenizer of {data.name} pads with {padding}: "
            f"use the model's own tokenizer, or set model.options.pad_token_id = {padding}"
        )
