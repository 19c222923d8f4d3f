"""Trials of a file: inputs, and the outputs that they must give. Real inputs, the example, or random ones that run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import onnxruntime as ort
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rigl_compress.exporters import verify
from rigl_compress.exporters.graph import flat_outputs, is_recurrent
from rigl_compress.exporters.probe import running
from rigl_compress.models.errors import InputError

Array = NDArray[Any]
Inputs = Mapping[str, Array]
# Sizes for free axes of images and sequences, where 1 and 2 are too small: several strides, pictures, moments of sound.
LENGTHS = (8, 32, 64, 224, 640, 4000, 16000)
STEADY = 1e-4  # how far two runs on the same inputs may be apart


@dataclass(frozen=True)
class Trial:
    """Inputs to try a file with, and the outputs that they must give."""

    inputs: Sequence[Inputs]
    outputs: Sequence[Sequence[Array]]


def torch_trial(model: nn.Module, example: tuple[Tensor, ...]) -> Trial:
    """Try the example as it is, and a random batch of another size."""
    recurrent = is_recurrent(model)
    batches = [[each.detach().cpu() for each in example], [_another(each, recurrent) for each in example]]
    inputs = [{name: each.numpy() for name, each in named_inputs(batch).items()} for batch in batches]
    with torch.no_grad():
        outputs = [[each.numpy() for each in flat_outputs(model(*batch))] for batch in batches]
    return Trial(inputs, outputs)


def named_inputs(inputs: Sequence[Tensor]) -> dict[str, Tensor]:
    """Give inputs by the names that they have in a file of ours."""
    names = ["input"] if len(inputs) == 1 else [f"input{number}" for number in range(len(inputs))]
    return dict(zip(names, inputs, strict=True))


def trial_of(session: ort.InferenceSession, *inputs: Inputs) -> Trial:
    """Run a model on inputs. One that gives something else every time cannot be compared with anything."""
    outputs = [verify.run_session(session, each) for each in inputs]
    again = [verify.run_session(session, each) for each in inputs]
    if not all(_alike(one, other) for one, other in zip(outputs, again, strict=True)):
        raise InputError("the model gives other outputs each time, as it draws random numbers: nothing can be compared")
    return Trial(inputs, outputs)


def _alike(one: Sequence[Array], other: Sequence[Array]) -> bool:
    same_shapes = [each.shape for each in one] == [each.shape for each in other]
    return same_shapes and verify.largest_difference(one, other) <= STEADY


def random_trial(session: ort.InferenceSession, path: Path) -> Trial:
    """Try random inputs with two samples and with one; if neither runs, with longer sequences and larger images."""
    verify.check_drawable(session)
    sizes = [*running(path, [(2, None), (1, None)])]
    sizes = sizes or [*islice(running(path, [(1, length) for length in LENGTHS]), 1)]
    if not sizes:
        raise InputError("the model does not run on random inputs: give inputs that fit it with --inputs FILE.npz")
    return trial_of(session, *(verify.random_inputs(session, batch, length=length) for batch, length in sizes))


def _another(example: Tensor, recurrent: bool) -> Tensor:
    """Give three samples, and a longer sequence, made of the example's own numbers: as valid as it is."""
    example = example.detach().cpu()
    if not example.dim():
        return example
    generator = torch.Generator().manual_seed(0)
    shape = [3, *example.shape[1:]]
    if recurrent and len(shape) > 1:
        shape[1] += 2
    places = torch.randint(example.numel(), shape, generator=generator)
    return example.reshape(-1)[places]
