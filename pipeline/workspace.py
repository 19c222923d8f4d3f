"""The folder of a run: what stands where, and how it is begun, taken up again or refused."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigl_compress.models.artifacts import atomic_path, json_text, read_json, read_small_text, write_json, write_text
from rigl_compress.models.errors import InputError
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.lock import leftover, locked
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
    def create(cls, path: Path, recipe: Recipe, *, overwrite: bool = False) -> "Run":
        """Make a new run folder. One that exists is refused; `overwrite` replaces an earlier run, nothing else."""
        run, occupied = cls(path), _occupied(path)
        if occupied and not overwrite:
            cures = "choose another folder, continue with resume=True, or replace with overwrite=True"
            raise InputError(f"{path} exists: {cures}")
        if occupied and not run.recipe_file.is_file():
            raise InputError(f"{path} exists and is not a run: it is not replaced; choose another folder")
        with atomic_path(run.recipe_file) as temporary:  # nothing is deleted before there is something in its place
            temporary.write_text(recipe.to_toml(), encoding="utf-8")
            run._clear()
        return run

    def _clear(self) -> None:
        """Delete what an earlier run left, and no other file; the recipe stays until the new one takes its place.

        What was made from other files goes before those: what a kill leaves is what an unfinished run looks like.
        """
        reports = (self.page_file, self.markdown_file, self.bench_file, self.stages_file)
        exported = map(self.export_file, ("dense", "sparse", "compact"))
        pruned = (self.prune_file, self.pruned_file)
        trained = (self.result_file, self.model_file, self.topology_file("end"), self.checkpoint_file)
        begun = (self.metrics_file, self.begin_file, self.topology_file("begin"))
        for file in (*reports, *exported, *pruned, *trained, *begun):
            if file.exists():
                file.unlink()

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Open an existing run folder."""
        run = cls(Path(path))
        if not run.path.exists():
            raise InputError(f"{path} does not exist: give a run folder, which `rigl-compress train` makes")
        if run.path.is_file():
            raise InputError(f"{path} is a file: give a run folder, which `rigl-compress train` makes")
        if not run.recipe_file.is_file():
            raise InputError(f"{path} is not a run folder (no recipe.toml in it): make one with `rigl-compress train`")
        return run

    def locked(self) -> AbstractContextManager[None]:
        """Hold the folder: no other process writes into it."""
        return locked(self.path)

    # Reading

    def recipe(self) -> Recipe:
        """The resolved recipe of the run."""
        return read_recipe(self.recipe_file, str(self.recipe_file))

    def model(self) -> SparseModel:
        """The trained network."""
        if not self.model_file.exists():
            raise self._unfinished()
        return SparseModel.load(self.model_file)

    def _unfinished(self) -> InputError:
        return InputError(
            f"{self.path} is not finished: continue with `rigl-compress train --run {self.path} --resume`"
        )

    def topology(self, moment: str) -> Topology:
        """The topology at "begin" or "end"."""
        return Topology.load(self.topology_file(moment))

    def result(self) -> dict[str, Any]:
        """What came out."""
        if not self.result_file.exists():
            raise self._unfinished()
        return checked_result(read_json(self.result_file), self.result_file)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The lines of the metrics, oldest first; a kill may have cut the last one short."""
        if self.metrics_file.exists():
            lines = read_small_text(self.metrics_file, errors="replace").splitlines()
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
        """Add a line. The file is written anew, so that no fault leaves half a line in it."""
        before = read_small_text(self.metrics_file) if self.metrics_file.exists() else ""
        write_text(self.metrics_file, f"{before}{json_text(row)}\n")

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write what came out."""
        write_json(self.result_file, {"format": 1, **result})


def _occupied(path: Path) -> bool:
    """Say whether there is anything at a path that a run would have to replace."""
    return path.exists() and (not path.is_dir() or not all(map(leftover, path.iterdir())))


@contextmanager
def locked_for(*files: Path | None) -> Iterator[None]:
    """Hold the run folders that files are to be written into; other folders have no lock."""
    folders = {file.parent for file in files if file is not None}
    with ExitStack() as held:
        for run in map(Run, sorted(folders)):
            if run.recipe_file.is_file():
                held.enter_context(run.locked())
        yield
