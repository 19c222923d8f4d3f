"""The commands that faults are injected into: what stands there before, what is called, what is called after it."""

import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from reliability.commands import call, must
from reliability.injection import Injector, Kind

Arguments = tuple[object, ...]
TRAINED = ("model.safetensors", "initial.safetensors", "topology-start.safetensors", "topology-end.safetensors")


@dataclass(frozen=True)
class Case:
    """A command: the folder before it is called, and its arguments, in which BOX is the copy that it works in.

    `then`: what must work afterwards, if not the same; `codes`: how it may exit when it fails; `wanted`: what must come
    out in the end; `replaces`: whether it is told to replace what is there.
    """

    name: str
    template: Path
    arguments: Arguments
    then: tuple[Arguments, ...] = ()
    codes: tuple[int, ...] = (2,)
    wanted: dict[str, bytes] | None = None
    replaces: bool = False

    def next_calls(self, box: Path) -> list[Arguments]:
        """Return what must work after a fault, each on a copy of its own: the same again, and what else there is."""
        begun = (box / "run" / "recipe.toml").exists()
        return [each for each in (self.then or (self.arguments,)) if begun or "--resume" not in each]

    def torn(self, box: Path) -> str:
        """Return which files do not belong together."""
        about, pruned = box / "run" / "prune.json", box / "run" / "pruned.safetensors"
        if not about.exists():
            return ""
        from rigl_compress.models.sparse_model import SparseModel

        plan = json.loads(about.read_text(encoding="utf-8"))["plan"]
        return "" if SparseModel.load(pruned).spec.plan == plan else "prune.json is not of pruned.safetensors"


BOX = "{box}"


@dataclass(frozen=True)
class Workshop:
    """A folder with data, recipes and the templates."""

    root: Path

    @property
    def data(self) -> tuple[object, ...]:
        """The options that name the data."""
        return ("--data-dir", self.root / "data", "--device", "cpu")

    def recipe(self, name: str, *changes: str) -> Path:
        """Write a recipe."""
        import tiny

        path = self.root / f"{name}.toml"
        path.write_text(tiny.recipe(*changes).to_toml(), encoding="utf-8")
        return path

    def template(self, name: str) -> Path:
        """Return an empty template."""
        folder = self.root / "templates" / name
        folder.mkdir(parents=True)
        return folder


@contextmanager
def workshop() -> Iterator[Workshop]:
    """Return a folder with the data in it, in memory where possible: waiting for a disk would take hours."""
    memory = Path("/dev/shm")
    with TemporaryDirectory(prefix="rigl-", dir=memory if os.access(memory, os.W_OK) else None) as folder:
        yield _furnished(Path(folder))


def _furnished(root: Path) -> Workshop:
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    import tiny

    tiny.write_mnist(root / "data" / "mnist", 100, 40)
    return Workshop(root)


SMALL = ("train.batch=25", "sparsity.interval=2", "model.options.hidden=[8]", "train.epochs=2")
WIDE = ("train.batch=25", "train.epochs=1", "model.options.hidden=[1024,512]", "sparsity.sparsity=0.97")
QUICK = ("--openings", 1, "--rounds", 1, "--seconds", 0.01)


def warm_up(shop: Workshop) -> list[Arguments]:
    """Return calls that import everything."""
    run, onnx = shop.root / "warm" / "run", shop.root / "warm" / "model.onnx"
    recipe = shop.recipe("warm", *SMALL)
    return [
        ("train", "--recipe", recipe, "-o", run, *shop.data),
        ("prune", run),
        ("export", run, "-o", onnx),
        ("bench", onnx, "--html", onnx.with_suffix(".html"), *QUICK),
        ("inspect", run, "--png", onnx.with_suffix(".png")),
        ("sparsify", onnx, "-o", onnx.with_name("small.onnx"), "--html", onnx.with_suffix(".html"), "--no-timing"),
        ("sweep", "--recipe", recipe, "-o", shop.root / "warm" / "sweep", *shop.data),
        ("compare", "--recipe", recipe, "-o", shop.root / "warm" / "compare", "--train-only", *shop.data),
    ]


def training(shop: Workshop, injector: Injector) -> list[Case]:
    """Train from the beginning, go on, and replace an earlier run."""
    recipe = shop.recipe("small", *SMALL)
    start: Arguments = ("train", "--recipe", recipe, "-o", f"{BOX}/run", *shop.data)
    force, resume = (*start, "--force"), ("train", "--resume", f"{BOX}/run", *shop.data)
    whole = shop.template("whole")
    must(*in_box(whole, start))
    wanted = {name: (whole / "run" / name).read_bytes() for name in TRAINED}
    half, earlier = shop.template("half"), shop.template("earlier")
    _stopped(half, in_box(half, start), injector)
    must("train", "--recipe", recipe, "-o", earlier / "run", *shop.data, "--seed", 1)
    must("prune", earlier / "run")
    return [
        Case("train", shop.template("empty"), start, (resume, force), wanted=wanted),
        Case("train --resume", half, resume, (resume, force), wanted=wanted),
        Case("train --force", earlier, force, (force,), wanted=wanted, replaces=True),
    ]


def _stopped(folder: Path, start: Arguments, injector: Injector) -> None:
    """Train until the first checkpoint is there, and no further."""
    for at in range(1, 1000):
        shutil.rmtree(folder)
        folder.mkdir()
        with injector.armed(folder, Kind.KILL, at):
            call(*start)
        if (folder / "run" / "checkpoint.safetensors").exists():
            return


def pruning(shop: Workshop) -> list[Case]:
    """Prune a run in which the files of an earlier pruning stand."""
    old, new = shop.template("other"), shop.template("pruned")
    recipe = shop.recipe("thin", *SMALL, "sparsity.sparsity=0.97")
    for seed, folder in enumerate((old, new)):
        must("train", "--recipe", recipe, "-o", folder / "run", *shop.data, "--seed", seed)
    must("prune", old / "run")
    for name in ("pruned.safetensors", "prune.json"):
        shutil.copy(old / "run" / name, new / "run" / name)
    return [Case("prune", new, ("prune", f"{BOX}/run"))]


def exporting(shop: Workshop) -> list[Case]:
    """Export a run over an earlier file, and draw and benchmark it over earlier reports."""
    wide = shop.template("wide")
    must("train", "--recipe", shop.recipe("wide", *WIDE), "-o", wide / "run", *shop.data)
    cases = []
    for target in ("onnx", "sparse-runtime"):
        export: Arguments = ("export", f"{BOX}/run", "-o", f"{BOX}/run/model.onnx", "--target", target, "--force")
        folder = shop.template(target)
        shutil.copytree(wide, folder, dirs_exist_ok=True)
        must(*in_box(folder, export))
        cases.append(Case(f"export --target {target}", folder, export))
    source = shop.root / "model.onnx"
    shutil.copy(shop.root / "templates" / "onnx" / "run" / "model.onnx", source)
    files = ("--html", f"{BOX}/page.html", "--report", f"{BOX}/report.json", "--markdown", f"{BOX}/report.md")
    bench, picture = ("bench", source, *files, *QUICK), ("inspect", f"{BOX}/run", "--png", f"{BOX}/run.png")
    for name, arguments in (("bench --html --report", bench), ("inspect --png", picture)):
        folder = shop.template(name.split()[0])
        if name.startswith("inspect"):
            shutil.copytree(shop.root / "templates" / "whole", folder, dirs_exist_ok=True)
        must(*in_box(folder, arguments))
        cases.append(Case(name, folder, arguments))
    return cases


def sparsifying(shop: Workshop) -> list[Case]:
    """Prune an ONNX file over an earlier one, with calibration data, and write a page."""
    import numpy as np
    from onnx_layers import correlated, perceptron, saved

    source, data = saved(perceptron(), shop.root / "dense.onnx"), shop.root / "calibration.npz"
    np.savez(data, x=correlated(60, 32))
    words = ("--calibration", data, "--no-timing", "--force", "--html", f"{BOX}/page.html")
    sparsify: Arguments = ("sparsify", source, "-o", f"{BOX}/small.onnx", *words)
    folder = shop.template("sparsify")
    must(*in_box(folder, sparsify))
    return [Case("sparsify", folder, sparsify)]


def fetching(shop: Workshop) -> list[Case]:
    """Fetch a data set of which a file is there, from a source on this machine."""
    from rigl_compress.data.data_files import DataFile, md5
    from rigl_compress.data.dataset_registry import DATASETS
    from rigl_compress.data.download_sources import Source
    from rigl_compress.data.mnist import MNIST

    contents = {path.name: path.read_bytes() for path in (shop.root / "data" / "mnist").iterdir()}
    published = tuple(DataFile(name, len(content), md5(content)) for name, content in contents.items())
    source = Source("this machine", lambda files, _: {file.name: contents[file.name] for file in files})
    spec = replace(MNIST, name="few-digits", files=published, sources=(source,), fallback="", counts=(100, 40))
    DATASETS._items[spec.name] = spec
    folder = shop.template("fetch")
    (folder / spec.name).mkdir()
    first = next(iter(contents))
    (folder / spec.name / first).write_bytes(contents[first])
    return [Case("data fetch", folder, ("data", "fetch", spec.name, "--data-dir", BOX))]


def grids(shop: Workshop) -> list[Case]:
    """A run of a sweep and one of a comparison, in processes of their own."""
    recipe = shop.recipe("grid", *SMALL, "train.epochs=1")
    sweep: Arguments = ("sweep", "--recipe", recipe, "-o", f"{BOX}/sweep", *shop.data)
    rows: Arguments = ("compare", "--recipe", recipe, "--grid", "method=rigl", "-o", f"{BOX}/compare")
    compare = (*rows, "--train-only", *shop.data)
    return [
        Case("sweep", shop.template("sweep"), sweep, codes=(1, 2)),
        Case("compare", shop.template("compare"), compare, codes=(1, 2)),
    ]


def in_box(box: Path, arguments: Sequence[object]) -> Arguments:
    """Return the arguments for a copy of the template."""
    return tuple(str(each).replace(BOX, str(box)) for each in arguments)


def all_cases(shop: Workshop, injector: Injector) -> list[Case]:
    """Make the templates, and give all commands."""
    trained = training(shop, injector)
    return [*fetching(shop), *pruning(shop), *exporting(shop), *sparsifying(shop), *trained, *grids(shop)]
