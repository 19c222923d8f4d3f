"""From a network or an ONNX file to a small ONNX file, checked before it gets its name."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from rigl_compress.exporters import verify
from rigl_compress.exporters.blocks import fill_blocks
from rigl_compress.exporters.contents import TensorRow, rows_of
from rigl_compress.exporters.graph import OPSET, Example, as_inputs, bake, export_graph
from rigl_compress.exporters.inner import lift_inner
from rigl_compress.exporters.onnx_file import LARGEST_FILE, load_model, opset_of, sha256_of
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.selection import PRUNED_SHAPES, read_cheaply
from rigl_compress.exporters.sparsify import (
    CHOICES,
    COMPACT,
    clear_negative_zeros,
    lift_constants,
    metadata_of,
    sparsify,
    write_metadata,
)
from rigl_compress.exporters.trials import Inputs, Trial, named_inputs, random_trial, torch_trial, trial_of
from rigl_compress.exporters.values import VALUES
from rigl_compress.models.artifacts import FORMAT, atomic_path
from rigl_compress.models.errors import InputError
from rigl_compress.models.resize import cut_weights
from rigl_compress.models.settings import convert, parse


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX file that passed its checks. `difference`: of its outputs, in parts of the source's largest output."""

    path: Path
    tensors: tuple[TensorRow, ...]
    bytes: int
    opset: int
    difference: float
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Give plain JSON values."""
        rows = [{**asdict(row), "shape": list(row.shape)} for row in self.tensors]
        facts = {"bytes": self.bytes, "opset": self.opset, "difference": self.difference}
        return {"format": FORMAT, "path": str(self.path), **facts, "metadata": dict(self.metadata), "tensors": rows}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ExportedModel":
        """Read what `to_json` gave."""
        found = content.get("format") if isinstance(content, Mapping) else None
        if found != FORMAT:
            raise InputError(f"an export of format {found!r}, this version reads {FORMAT}: export again")
        kept = {key: value for key, value in content.items() if key != "format"}
        return parse(cls, {**kept, "path": Path(convert(str, content.get("path"), "path"))})


@dataclass(frozen=True)
class Layout:
    """How an export writes weights, and what it says about the model."""

    encoding: str = "sparse"
    values: str = "fp32"
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = CHOICES[self.encoding], VALUES[self.values]

    def metadata(self) -> dict[str, Any]:
        """Give what is written into the file; of `compact`, the tensors say how each is encoded."""
        encoding = {} if self.encoding == COMPACT else {"encoding": self.encoding}
        about = {"format": FORMAT, "version": version("rigl-compress"), **encoding, "values": self.values}
        return {**about, **self.facts}


def export_onnx(
    model: nn.Module,
    example_input: Example,
    path: Path | str,
    *,
    encoding: str = "sparse",
    values: str = "fp32",
    fold_batch_norm: bool = True,
    opset: int = OPSET,
    overwrite: bool = False,
    facts: Mapping[str, Any] | None = None,
) -> ExportedModel:
    """Export a network to one ONNX file whose zeros take little or no space. The network is left as it was.

    The file appears under its name only after it was opened with ONNX Runtime and gave the network's outputs.

    >>> import tempfile, torch
    >>> layer = nn.Linear(100, 100)
    >>> _ = layer.weight.data.masked_fill_(torch.rand(100, 100) < 0.9, 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = export_onnx(layer, torch.rand(1, 100), f"{folder}/layer.onnx", encoding="compact")
    >>> exported.tensors[0].encoding, exported.bytes < 7000
    ('gap8', True)
    """
    inputs = as_inputs(example_input)
    shapes = {name: list(each.shape) for name, each in named_inputs(inputs).items()}
    target = check_target(Path(path), overwrite=overwrite)
    baked, fast = bake(model), bake(model)
    before = read_cheaply(fast, inputs)
    plain = export_graph(fast, example_input, fold_batch_norm=fold_batch_norm, opset=opset)
    verify.check_source_zeros(plain, {name: tensor.numpy() for name, tensor in fast.state_dict().items()})
    lift_constants(plain)
    lift_inner(plain)
    clear_negative_zeros(plain)
    before = fill_blocks(plain, cut_weights(fast)) | before
    known = {**(facts or {}), "inputs": shapes, **({PRUNED_SHAPES: before} if before else {})}
    layout = Layout(encoding, values, known)
    return write_checked(plain, target, layout, torch_trial(baked, inputs))


def reencode(
    source: Path | str,
    path: Path | str,
    layout: Layout | None = None,
    *,
    overwrite: bool = False,
    inputs: Inputs | None = None,
) -> ExportedModel:
    """Write the weights of any ONNX file in another encoding; `dense` gives back the plain model, bit by bit."""
    found = Path(source)
    chosen = layout or Layout()
    loaded = load_model(found)
    target = check_target(Path(path), overwrite=overwrite, source=found)
    earlier = {key: value for key, value in metadata_of(loaded).items() if key not in ("tensors", "encoding")}
    facts = {**earlier, **chosen.metadata(), "source_sha256": sha256_of(found)}
    plain = restore(loaded)
    lift_constants(plain)
    lift_inner(plain)
    if chosen.values != "fp32":  # bits are lost anyway
        clear_negative_zeros(plain)
    session = verify.open_session(found)
    trial = random_trial(session, found) if inputs is None else trial_of(session, inputs)
    return write_checked(plain, target, replace(chosen, facts=facts), trial)


def check_target(path: Path, *, overwrite: bool, source: Path | None = None) -> Path:
    """Refuse what would overwrite a file without being told to, or could not be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file, such as {path / 'model.onnx'}")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, not a file: give the name of a file")
    if path.exists() and not overwrite:
        same = source is not None and source.exists() and path.samefile(source)
        found = "is the source itself" if same else "exists"
        raise InputError(f"{path} {found}: choose another name, or replace it with overwrite=True")
    return path


def write_checked(plain: onnx.ModelProto, path: Path, layout: Layout, trial: Trial) -> ExportedModel:
    """Encode a plain model and check the file; it takes its name only if every check passes."""
    model = sparsify(plain, layout.encoding, layout.values)
    write_metadata(model, layout.metadata())
    verify.check_zeros(model, plain, exact=layout.values == "fp32")
    verify.check_rebuilt(model)
    if model.ByteSize() > LARGEST_FILE:
        raise InputError(f"{path} would be larger than 2 GiB, more than an ONNX file can hold: try --encoding compact")
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        difference = verify.check_file(temporary, trial.inputs, trial.outputs, VALUES[layout.values].tolerance)
    return replace(read_exported(path), difference=difference)


def read_exported(path: Path) -> ExportedModel:
    """Look into an ONNX file, ours or not."""
    return described(path, load_model(path))


def described(path: Path, model: onnx.ModelProto) -> ExportedModel:
    """Say what is in a model that was loaded from a file."""
    facts = {key: value for key, value in metadata_of(model).items() if key != "tensors"}
    return ExportedModel(path, rows_of(model), path.stat().st_size, opset_of(model), 0.0, facts)
