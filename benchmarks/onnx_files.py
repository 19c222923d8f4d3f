"""ONNX files of networks for `rigl-compress bench`: dense, dense with int8 weights and activations, and sparse ones."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from torch import Tensor, nn

import rigl_compress as rc

Inputs = Mapping[str, Sequence[Tensor]]  # by name, some batches each


class _Batches:
    """Calibration batches, as ONNX Runtime's quantizer reads them."""

    def __init__(self, inputs: Inputs) -> None:
        rows = zip(*inputs.values(), strict=True)
        self._rows = ({name: each.numpy() for name, each in zip(inputs, row, strict=True)} for row in rows)

    def get_next(self) -> dict[str, Any] | None:
        """Return the next batch; None at the end."""
        return next(self._rows, None)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self._rows

    def set_range(self, start_index: int, end_index: int) -> None:
        """Ignore parts: all batches are read at once."""


def write_files(networks: Mapping[str, nn.Module], inputs: Inputs, folder: Path, *, static: bool = True) -> list[Path]:
    """Export networks by name, "dense" among them, quantize that one, and say how to compare them all."""
    example, files = tuple(batches[0] for batches in inputs.values()), []
    for name, network in networks.items():
        file, encoding = folder / f"{name}.onnx", "dense" if name == "dense" else "compact"
        rc.export_onnx(network, example, file, encoding=encoding, overwrite=True)
        files.append(file)
    files.insert(1, quantize(folder / "dense.onnx", _limited(inputs, 50), static=static))
    click.echo(f"rigl-compress bench {' '.join(map(str, files))}")
    return files


def _limited(inputs: Inputs, count: int) -> Inputs:
    return {name: batches[:count] for name, batches in inputs.items()}


def quantize(file: Path, inputs: Inputs, *, static: bool) -> Path:
    """Write the int8 version: with activations calibrated on batches, or quantized as they come."""
    from onnxruntime.quantization import QuantFormat, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    prepared, target = file.with_name("prepared.onnx"), file.with_name("int8.onnx")
    quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
    if static:
        quantize_static(str(prepared), str(target), _Batches(inputs), quant_format=QuantFormat.QDQ, per_channel=True)
    else:
        quantize_dynamic(str(prepared), str(target), per_channel=True)
    prepared.unlink()
    return target
