"""The folder of a run: its files, and how it is created, opened and locked."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rigl_compress.core.artifacts import atomic_path, json_text, read_json, read_small_text, write_json, write_text
from rigl_compress.core.errors import InputError
from rigl_compress.core.folder_lock import leftover, locked
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.recipe import Recipe, read_recipe
from rigl_compress.pipeline.run_result import checked_result, parse_metrics


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
    def initial_file(self) -> Path:
        """The network before training: all initial weights, with a full topology."""
        return self.path / "initial.safetensors"

    @property
    def teacher_file(self) -> Path:
        """The network that `distill.run` names: a copy, so that a run can be resumed without that folder."""
        return self.path / "teacher.safetensors"

    @property
    def model_file(self) -> Path:
        """The trained network."""
        return self.path / "model.safetensors"

    @property
    def result_file(self) -> Path:
        """The result, with command, seed, machine and date."""
        return self.path / "result.json"

    @property
    def removals_file(self) -> Path:
        """What training found about dead neurons: the removals that `prune` repeats."""
        return self.path / "removals.json"

    @property
    def pruned_file(self) -> Path:
        """The trained network without its dead neurons."""
        return self.path / "pruned.safetensors"

    @property
    def prune_file(self) -> Path:
        """The prune plan and report, with command, machine and date."""
        return self.path / "prune.json"

    @property
    def bench_file(self) -> Path:
        """The report of a benchmark, as JSON."""
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
        """Return the path of an exported network."""
        return self.path / f"{name}.onnx"

    def topology_file(self, moment: str) -> Path:
        """Return the path of the topology at the "start" or at the "end" of training."""
        return self.path / f"topology-{moment}.safetensors"

    # Creating and opening

    @classmethod
    def create(cls, path: Path, recipe: Recipe, *, overwrite: bool = False) -> "Run":
        """Create a run folder. An existing folder is an error; `overwrite` replaces an earlier run, nothing else."""
        run = cls(path)
        run.check_free(overwrite=overwrite)
        with atomic_path(run.recipe_file) as temporary:  # nothing is deleted before the new recipe is written
            temporary.write_text(recipe.to_toml(), encoding="utf-8")
            run._clear()
        return run

    def check_free(self, *, overwrite: bool = False) -> None:
        """Raise if the folder cannot become that of a new run."""
        occupied = _occupied(self.path)
        if occupied and not overwrite:
            cures = "choose another folder, resume with resume=True, or replace it with overwrite=True"
            raise InputError(f"{self.path} exists: {cures}")
        if occupied and not self.recipe_file.is_file():
            raise InputError(f"{self.path} exists and is not a run folder: choose another folder")

    def _clear(self) -> None:
        """Delete the files of an earlier run, and no others; the recipe stays until the new one replaces it.

        Derived files are deleted before their sources: what a kill leaves looks like an unfinished run.
        """
        reports = (self.page_file, self.markdown_file, self.bench_file, self.stages_file)
        exported = map(self.export_file, ("dense-network", "dense", "sparse", "compact"))
        pruned = (self.prune_file, self.pruned_file, self.removals_file)
        trained = (self.result_file, self.model_file, self.topology_file("end"), self.checkpoint_file)
        started = (self.metrics_file, self.teacher_file, self.initial_file, self.topology_file("start"))
        for file in (*reports, *exported, *pruned, *trained, *started):
            if file.exists():
                file.unlink()

    @classmethod
    def open(cls, path: Path | str) -> "Run":
        """Open an existing run folder."""
        run = cls(Path(path))
        if not run.path.exists():
            raise InputError(f"{path} does not exist: pass a run folder, which `rigl-compress train` makes")
        if run.path.is_file():
            raise InputError(f"{path} is a file: pass a run folder, which `rigl-compress train` makes")
        if not run.recipe_file.is_file():
            raise InputError(f"{path} is not a run folder (no recipe.toml in it): make one with `rigl-compress train`")
        return run

    def locked(self) -> AbstractContextManager[None]:
        """Lock the folder: no other process writes into it."""
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
        return InputError(f"{self.path} is not finished: resume with `rigl-compress train --resume {self.path}`")

    def topology(self, moment: str) -> Topology:
        """Return the path of the topology at the "start" or at the "end" of training."""
        return Topology.load(self.topology_file(moment))

    def result(self) -> dict[str, Any]:
        """Read the result."""
        if not self.result_file.exists():
            raise self._unfinished()
        return checked_result(read_json(self.result_file), self.result_file)

    def metrics(self) -> Iterator[dict[str, Any]]:
        """Yield the lines of the metrics, oldest first; a kill may have truncated the last one."""
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
        """Delete the lines after an epoch: those past the checkpoint that training resumes from."""
        lines = [json_text(row) + "\n" for row in self.metrics() if row["epoch"] <= epochs]
        write_text(self.metrics_file, "".join(lines))

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a line. The whole file is replaced, so that no crash leaves half a line in it."""
        before = read_small_text(self.metrics_file) if self.metrics_file.exists() else ""
        write_text(self.metrics_file, f"{before}{json_text(row)}\n")

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write the result."""
        write_json(self.result_file, {"format": 1, **result})


def _occupied(path: Path) -> bool:
    """Whether there is anything at a path that a run would replace."""
    return path.exists() and (not path.is_dir() or not all(map(leftover, path.iterdir())))


@contextmanager
def locked_for(*files: Path | None) -> Iterator[None]:
    """Lock the run folders that files are written into; other folders have no lock."""
    folders = {file.parent for file in files if file is not None}
    with ExitStack() as held:
        for run in map(Run, sorted(folders)):
            if run.recipe_file.is_file():
                held.enter_context(run.locked())
        yield
