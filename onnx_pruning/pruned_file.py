"""The file of a pruned model: how it is written, and how large it will be."""

from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx
from numpy.typing import NDArray

from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.exporters.onnx_export import ExportedModel, encoded, write_checked
from rigl_compress.exporters.onnx_file import sha256_of
from rigl_compress.exporters.ort_sessions import open_session
from rigl_compress.exporters.reference_outputs import session_reference
from rigl_compress.exporters.sparsify import metadata_of
from rigl_compress.onnx_pruning.plain_source import named
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.pipeline.bench.model_inputs import one_sample
from rigl_compress.runtime.sparse_runtime_export import TARGET, export_sparse_runtime

Array = NDArray[Any]
LONGEST = 0.123456  # a sparsity with all the digits that a file has of it


@dataclass(frozen=True)
class PrunedFile:
    """Writes pruned models of one source; each is checked on a batch of inputs."""

    source: Path
    config: SparsifyConfig
    inputs: dict[str, Array]

    def write(self, model: onnx.ModelProto, path: Path, sparsity: float) -> ExportedModel:
        """Write a model, replacing what is there."""
        facts = self._facts(model, sparsity)
        if self.config.target == TARGET:
            with TemporaryDirectory() as folder:
                plain = Path(folder) / "plain.onnx"
                plain.write_bytes(model.SerializeToString())
                with named(self.source, plain):
                    return export_sparse_runtime(plain, path, overwrite=True, inputs=self.inputs, facts=facts)
        reference = session_reference(open_session(model), self.inputs)
        return write_checked(model, path, replace(self.config.layout, facts=facts), reference)

    def size(self, model: onnx.ModelProto, sparsity: float = LONGEST) -> int:
        """Return how many bytes the file of a model will have."""
        if self.config.target == TARGET:
            with TemporaryDirectory() as folder:
                return self.write(model, Path(folder) / "trial.onnx", sparsity).bytes
        return int(encoded(model, replace(self.config.layout, facts=self._facts(model, sparsity))).ByteSize())

    def flops(self, model: onnx.ModelProto) -> float:
        """Return the FLOPs of a sample in a model."""
        return float(graph_costs(model, one_sample(model, self.inputs)).sparse_flops)

    def _facts(self, model: onnx.ModelProto, sparsity: float) -> dict[str, Any]:
        own = {"method": self.config.chosen_method, "sparsity": round(sparsity, 6)}
        earlier = {key: value for key, value in metadata_of(model).items() if key not in ("tensors", "encoding")}
        return {**earlier, "sparsify": own, "source_sha256": sha256_of(self.source)}
