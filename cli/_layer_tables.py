"""Tables of the layers of an ONNX file: how each runs, and what pruning left of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rigl_compress.cli import _render
from rigl_compress.core.wording import percent

if TYPE_CHECKING:
    from rigl_compress.onnx_pruning.sparsify_report import SparsifyReport
    from rigl_compress.runtime.explain import LayerChoice


def choices(rows: "Sequence[LayerChoice]") -> None:
    """Print how each layer runs, and why."""
    columns = ("weights", "operator", "shape", "zeros", "kernel", "expected gain", "why it is dense")
    _render.table("", columns, [_choice(row) for row in rows])
    sparse = sum(row.kernel.startswith("Sparse") for row in rows)
    _render.text("", f"{sparse} of {len(rows)} layers run on sparse kernels")


def _choice(row: "LayerChoice") -> tuple[str, ...]:
    gain = "" if row.gain is None else f"{row.gain:.2f}x"
    shape = "×".join(map(str, row.shape))
    return row.name, row.operator, shape, percent(1 - row.density, 1), row.kernel, gain, row.reason


def sparsified(report: "SparsifyReport") -> None:
    """Print what came of pruning an ONNX file."""
    from rigl_compress.onnx_pruning.sparsify_report import dense_lines, layer_table, summary_table

    for each in (layer_table(report), summary_table(report)):
        _render.table(each.title, each.columns, each.rows)
        _render.text("")
    for line in dense_lines(report.dense):
        _render.text(line)
    _render.text(f"written to {report.path} in {report.seconds:.0f} s")
