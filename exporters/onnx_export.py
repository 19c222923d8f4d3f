"""Export of networks and ONNX files to small ONNX files, verified before they are moved into place."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx
from torch import nn

from rigl_compress.core.artifacts import FORMAT, atomic_path
from rigl_compress.core.dataclass_io import convert, parse
from rigl_compress.core.errors import InputError
from rigl_compress.exporters import verify
from rigl_compress.exporters.channel_padding import pad_channels
from rigl_compress.exporters.input_selection import PRUNED_SHAPES, choose_selections
from rigl_compress.exporters.onnx_file import LARGEST_FILE, load_model, opset_of, sha256_of
from rigl_compress.exporters.ort_sessions import Inputs, open_session
from rigl_compress.exporters.packed_projections import split_packed_projections
from rigl_compress.exporters.reference_outputs import (
    ReferenceRun,
    named_inputs,
    random_reference,
    session_reference,
    torch_reference,
)
from rigl_compress.exporters.restore import restore
from rigl_compress.exporters.sparsify import (
    COMPACT,
    clear_negative_zeros,
    encodings_to_try,
    lift_constants,
    metadata_of,
    sparsify,
    write_metadata,
)
from rigl_compress.exporters.subgraph_weights import lift_subgraph_weights
from rigl_compress.exporters.tensor_table import TensorRow, rows_of
from rigl_compress.exporters.torch_to_onnx import OPSET, Example, bake, export_graph
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.models.layer_resizing import cut_weights
from rigl_compress.models.nested_tensors import as_inputs


@dataclass(frozen=True)
class ExportedModel:
    """A verified ONNX file. `difference`: the largest of its outputs, relative to the source's largest output."""

    path: Path
    tensors: tuple[TensorRow, ...]
    bytes: int
    opset: int
    difference: float
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        rows = [{**asdict(row), "shape": list(row.shape)} for row in self.tensors]
        facts = {"bytes": self.bytes, "opset": self.opset, "difference": self.difference}
        return {"format": FORMAT, "path": str(self.path), **facts, "metadata": dict(self.metadata), "tensors": rows}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "ExportedModel":
        """Rebuild a record from the values of `to_json`."""
        found = content.get("format") if isinstance(content, Mapping) else None
        if found != FORMAT:
            raise InputError(f"the export has format {found!r}, this version reads {FORMAT}: export again")
        kept = {key: value for key, value in content.items() if key != "format"}
        return parse(cls, {**kept, "path": Path(convert(str, content.get("path"), "path"))})


@dataclass(frozen=True)
class Layout:
    """How an export encodes weights, and the facts for its metadata."""

    encoding: str = "sparse"
    values: str = "fp32"
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _ = encodings_to_try(self.encoding), VALUES[self.values]

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the file; with `compact`, they have an encoding for each tensor instead of one."""
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
    """Export a network to one ONNX file whose zeros take little or no space. The network is not changed.

    The file is moved into place only after ONNX Runtime has reproduced the network's outputs with it.

    >>> import tempfile, torch
    >>> layer = nn.Linear(100, 100)
    >>> _ = layer.weight.data.masked_fill_(torch.rand(100, 100) < 0.9, 0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     exported = export_onnx(layer, torch.rand(1, 100), f"{folder}/layer.onnx", encoding="compact")
    >>> exported.tensors[0].encoding, exported.bytes < 7000
    ('gap8', True)
    """
    target = check_target(Path(path), overwrite=overwrite)
    plain = plain_export(model, example_input, fold_batch_norm=fold_batch_norm, opset=opset)
    return plain.write(target, Layout(encoding, values, facts or {}))


@dataclass(frozen=True)
class PlainExport:
    """A network as a plain ONNX model, with its reference outputs: it can be written in several layouts."""

    model: onnx.ModelProto
    reference: ReferenceRun
    facts: Mapping[str, Any]

    def write(self, target: Path, layout: Layout) -> ExportedModel:
        """Write the model in a layout, verified before the file is moved into place."""
        return write_checked(self.model, target, replace(layout, facts={**layout.facts, **self.facts}), self.reference)


def plain_export(
    model: nn.Module, example_input: Example, *, fold_batch_norm: bool = True, opset: int = OPSET
) -> PlainExport:
    """Export a network without encoding its weights; the network is not changed."""
    inputs = as_inputs(example_input)
    shapes = {name: list(each.shape) for name, each in named_inputs(inputs).items()}
    baked, fast = bake(model), bake(model)
    before = choose_selections(fast, inputs)
    plain = export_graph(fast, example_input, fold_batch_norm=fold_batch_norm, opset=opset)
    verify.check_source_zeros(plain, {name: tensor.numpy() for name, tensor in fast.state_dict().items()})
    split_packed_projections(plain)
    lift_constants(plain)
    lift_subgraph_weights(plain)
    clear_negative_zeros(plain)
    before = pad_channels(plain, cut_weights(fast)) | before
    facts = {"inputs": shapes, **({PRUNED_SHAPES: before} if before else {})}
    return PlainExport(plain, torch_reference(baked, inputs), facts)


def reencode(
    source: Path | str,
    path: Path | str,
    layout: Layout | None = None,
    *,
    overwrite: bool = False,
    inputs: Inputs | None = None,
) -> ExportedModel:
    """Write the weights of any ONNX file in another encoding; `dense` restores the plain model, bit by bit."""
    found = Path(source)
    chosen = layout or Layout()
    loaded = load_model(found)
    target = check_target(Path(path), overwrite=overwrite, source=found)
    earlier = {key: value for key, value in metadata_of(loaded).items() if key not in ("tensors", "encoding")}
    facts = {**earlier, **chosen.metadata(), "source_sha256": sha256_of(found)}
    plain = restore(loaded)
    lift_constants(plain)
    lift_subgraph_weights(plain)
    if chosen.values != "fp32":  # rounding changes bits anyway
        clear_negative_zeros(plain)
    session = open_session(found)
    reference = random_reference(session, found) if inputs is None else session_reference(session, inputs)
    return write_checked(plain, target, replace(chosen, facts=facts), reference)


def check_target(path: Path, *, overwrite: bool, source: Path | None = None) -> Path:
    """Return the path; raise `InputError` if it cannot be written, or exists and `overwrite` is not set."""
    if path.is_dir():
        raise InputError(f"{path} is a folder, not a file: use a name such as {path / 'model.onnx'}")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a device or a pipe, not a file: use another name")
    if path.exists() and not overwrite:
        same = source is not None and source.exists() and path.samefile(source)
        found = "is the source itself" if same else "exists"
        raise InputError(f"{path} {found}: choose another name, or replace it with overwrite=True")
    return path


def encoded(plain: onnx.ModelProto, layout: Layout) -> onnx.ModelProto:
    """Return a copy of a plain model as it is written, with its metadata."""
    model = sparsify(plain, layout.encoding, layout.values)
    write_metadata(model, layout.metadata())
    return model


def write_checked(plain: onnx.ModelProto, path: Path, layout: Layout, reference: ReferenceRun) -> ExportedModel:
    """Encode a plain model and verify the file; it is moved into place only if every check passes."""
    model = encoded(plain, layout)
    verify.check_zeros(model, plain, exact=layout.values == "fp32")
    verify.check_rebuilt(model)
    if model.ByteSize() > LARGEST_FILE:
        raise InputError(f"{path} would be larger than 2 GiB, more than an ONNX file can hold: try --encoding compact")
    with atomic_path(path) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
        difference = verify.check_file(temporary, reference.inputs, reference.outputs, VALUES[layout.values].tolerance)
    return replace(read_exported(path), difference=difference)


def read_exported(path: Path) -> ExportedModel:
    """Describe any ONNX file."""
    return describe(path, load_model(path))


def describe(path: Path, model: onnx.ModelProto) -> ExportedModel:
    """Describe a model that was loaded from a file."""
    facts = {key: value for key, value in metadata_of(model).items() if key != "tensors"}
    return ExportedModel(path, rows_of(model), path.stat().st_size, opset_of(model), 0.0, facts)
