"""Reference runs: inputs and expected outputs for verifying a file, from a network or its source file."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import onnxruntime as ort
import torch
from torch import Tensor, nn

from rigl_compress.core.errors import InputError
from rigl_compress.exporters.input_size_probe import runnable_sizes
from rigl_compress.exporters.ort_sessions import Array, Inputs, run_session
from rigl_compress.exporters.random_inputs import random_inputs, session_inputs
from rigl_compress.exporters.torch_to_onnx import is_recurrent
from rigl_compress.exporters.verify import largest_difference
from rigl_compress.models.nested_tensors import tensors_in

# Sizes for dynamic axes of images, sequences and sound, tried if 1 and 2 are too small.
LENGTHS = (8, 32, 64, 224, 640, 4000, 16000)
REPEATABLE = 1e-4  # largest difference of two runs on the same inputs


@dataclass(frozen=True)
class ReferenceRun:
    """Inputs, and the outputs that a file is expected to return for them."""

    inputs: Sequence[Inputs]
    outputs: Sequence[Sequence[Array]]


def torch_reference(model: nn.Module, example: tuple[Tensor, ...]) -> ReferenceRun:
    """Run a network on the example and on a random batch of another size."""
    recurrent = is_recurrent(model)
    batches = [[each.detach().cpu() for each in example], [_resampled(each, recurrent) for each in example]]
    inputs = [{name: each.numpy() for name, each in named_inputs(batch).items()} for batch in batches]
    with torch.no_grad():
        outputs = [[each.numpy() for each in tensors_in(model(*batch))] for batch in batches]
    return ReferenceRun(inputs, outputs)


def named_inputs(inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return inputs by their names in an exported file."""
    names = ["input"] if len(inputs) == 1 else [f"input{number}" for number in range(len(inputs))]
    return dict(zip(names, inputs, strict=True))


def session_reference(session: ort.InferenceSession, *inputs: Inputs) -> ReferenceRun:
    """Run a model on inputs; raise `InputError` if a second run has other outputs."""
    outputs = [run_session(session, each) for each in inputs]
    again = [run_session(session, each) for each in inputs]
    if not all(_same_outputs(one, other) for one, other in zip(outputs, again, strict=True)):
        raise InputError(
            "two runs have different outputs, as the model draws random numbers: exports cannot be verified"
        )
    return ReferenceRun(inputs, outputs)


def _same_outputs(one: Sequence[Array], other: Sequence[Array]) -> bool:
    same_shapes = [each.shape for each in one] == [each.shape for each in other]
    return same_shapes and largest_difference(one, other) <= REPEATABLE


def random_reference(session: ort.InferenceSession, path: Path) -> ReferenceRun:
    """Run a model on random inputs of two samples and of one; if both fail, with longer sequences and larger images."""
    session_inputs(session)  # raises where no random inputs can be drawn
    sizes = [*runnable_sizes(path, [(2, None), (1, None)])]
    sizes = sizes or [*islice(runnable_sizes(path, [(1, length) for length in LENGTHS]), 1)]
    if not sizes:
        raise InputError("the model does not run on random inputs: pass inputs that fit with --inputs FILE.npz")
    return session_reference(session, *(random_inputs(session, batch, length=length) for batch, length in sizes))


def _resampled(example: Tensor, recurrent: bool) -> Tensor:
    """Return three samples of the example's elements, which are valid inputs; sequences are two steps longer."""
    example = example.detach().cpu()
    if not example.dim():
        return example
    generator = torch.Generator().manual_seed(0)
    shape = [3, *example.shape[1:]]
    if recurrent and len(shape) > 1:
        shape[1] += 2
    chosen = torch.randint(example.numel(), shape, generator=generator)
    return example.reshape(-1)[chosen]
