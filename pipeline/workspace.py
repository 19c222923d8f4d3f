"""The folder of a run: what stands where, and how it is begun, taken up again or refused."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigl_compress.models.artifacts import json_text, read_json, write_json, write_text
from rigl_compress.models.errors import InputError
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.recipe import Recipe, read_recipe
from rigl_compress.pipeline.result import checked_result, parse_metrics


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.path / "recipe.toml"

    @property
    def metrics_file(self) -> Path:
        """One JSON line per evaluated epoch."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoint_file(self) -> Path:
        """The latest checkpoint."""
        return self.path / "checkpoint.safetensors"

    @property
    def begin_file(self) -> Path:
        """The network before training: all initial weights, dead ones too, with a full topology."""
        return self.path / "begin.safetensors"

    @property
    def model_file(self) -> Path:
        """The trained network."""
        return self.path / "model.safetensors"

    @property
    def result_file(self) -> Path:
        """What came out, with command, seed, machine and date."""
        return self.path / "result.json"

    @property
    def pruned_file(self) -> Path:
        """The trained network without its dead neurons."""
        return self.path / "pruned.safetensors"

    @property
    def prune_file(self) -> Path:
        """What was pruned: plan, report, command, machine, date."""
        return self.path / "prune.json"

    @property
    def bench_file(self) -> Path:
        """What a benchmark found."""
        return self.path / "bench.json"

    @property
    def page_file(self) -> Path:
        """The report as a page."""
        return self.path / "report.html"

    @property
    def markdown_file(self) -> Path:
        """The report in Markdown."""
        return self.path / "report.md"

    @property
    def stages_file(self) -> Path:
        """The hashes of what each stage read and wrote."""
        return self.path / "stages.json"

    def export_file(self, name: str) -> Path:
        """An exported network."""
        return self.path / f"{name}.onnx"

    def topology_file(self, moment: str) -> Path:
        """The topology at "begin" or "end"."""
        return self.path / f"topology-{moment}.safetensors"

    # Beginning

    @classmethod
    def create(cls, path: Path, recipe: Recipe, *, force: bool = False) -> "Run":
        """Make a new run folder. One that exists is refused; with `force` an earlier run is replaced, nothing else."""
        run = cls(path)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if not force:
                raise InputError(
                    f"{path} exists: choose another folder, continue with --resume, or replace with --force"
                )
            if not run.recipe_file.is_file():
                raise InputError(f"{path} exists and is not a run: it is not replaced; choose another folder")
            run._clear()
        path.mkdir(parents=True, exist_ok=True)
        write_text(run.recipe_file, recipe.to_toml())
        return run

    def _clear(self) -> None:
        """Delete what an earlier run left, and no other file; the recipe stays until the new one takes its place."""
        trained = (self.metrics_file, self.checkpoint_file, self.begin_file, self.model_file, self.result_file)
        later = (self.pruned_file, self.prune_file, self.bench_file, self.page_file, self.markdown_file)
        exported = (self.stages_file, *map(self.export_file, ("dense", "sparse", "compact")))
        for file in (*trained, *later, *exported, self.topology_file("begin"), self.topology_file("end")):
            file.unlink(missing_ok=True)

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Open an existing run folder."""
        run = cls(Path(path))
        if not run.recipe_file.is_file():
            raise InputError(f"{path} is not a run folder (no recipe.toml in it): make one with `rigl-compress train`")
        return run

    # Reading

    def recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        return read_recipe(self.recipe_file, str(self.recipe_file))

    def model(self) -> SparseModel:
        """The trained network."""
        if not self.model_file.exists():
            raise InputError(
                f"{self.path} is not finished: continue with `rigl-compress train --run {self.path} --resume`"
            )
        return SparseModel.load(self.model_file)

    def topology(self, moment: str) -> Topology:
        """The topology at "begin" or "end"."""
        return Topology.load(self.topology_file(moment))

    def result(self) -> dict[str, Any]:
        """What came out."""
        return checked_result(read_json(self.result_file), self.result_file)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics, oldest first; a kill may have cut the last one short."""
        if self.metrics_file.exists():
            lines = self.metrics_file.read_text(encoding="utf-8", errors="replace").splitlines()
            for number, line in enumerate(lines, start=1):
                try:
                    yield parse_metrics(line, f"{self.metrics_file}, line {number}")
                except InputError:
                    if number < len(lines):
                        raise

    # Writing

    def keep_metrics(self, epochs: int) -> None:
        """Forget the lines past an epoch: those after the checkpoint that training resumes from."""
        lines = [json_text(row) + "\n" for row in self.metrics() if row["epoch"] <= epochs]
        write_text(self.metrics_file, "".join(lines))

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Append a line."""
        with self.metrics_file.open("a", encoding="utf-8") as file:
            file.write(json_text(row) + "\n")

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what came out."""
        write_json(self.result_file, {"format": 1, **result})
