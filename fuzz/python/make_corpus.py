"""Writes the corpora anew: small inputs of every kind, made by our own code.

python fuzz/python/make_corpus.py [FOLDER]
"""

import gzip
import io
import json
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from safetensors.torch import save as save_safetensors
from torch import nn

from fuzzing.bundle import folder_bytes, pack
from rigl_compress.data.idx_format import format_idx
from rigl_compress.exporters.onnx_export import Layout, export_onnx, reencode
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.bench.bench_sources import Source
from rigl_compress.pipeline.bench.stage import BenchConfig, bench
from rigl_compress.pipeline.bench.timing import TimingPlan
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.recipe import parse_recipe
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run
from rigl_compress.runtime.rewrite import rewrite
from rigl_compress.runtime.sparse_layer_table import layer_metadata
from rigl_compress.runtime.sparse_runtime_export import TARGET

CORPUS = Path(__file__).resolve().parents[1] / "corpus"
Inputs = Iterator[tuple[str, bytes]]
RECIPE = """
name = "tiny"
[model]
name = "mlp"
options = { hidden = [2, 2] }
[train]
epochs = 2
batch = 4
[sparsity]
method = "rigl"
sparsity = 0.9
interval = 1
"""
OTHERS = {
    "gates": 'name = "g"\n[sparsity]\nmethod = "l0"\n',
    "convolutions": 'name = "c"\nseed = 3\n[model]\nname = "lenet-5"\n[learning_rate]\npeak = 0.1\nshape = "linear"\n',
    "text": 'name = "t"\n[data]\nname = "text"\noptions = { length = 16 }\n[model]\nname = "char-gru"\n',
    "start": 'name = "s"\n[start]\nrun = "runs/first"\nweights = "initial"\ntopology = "end"\n',
}
COMPARISON = """
name = "c"
seeds = 2
[[row]]
label = "RigL"
recipe = "mnist-rigl"
set = ["train.epochs=1"]
[[row]]
label = "RigL+"
recipe = "mnist-rigl-plus"
after = "RigL"
paper = "RigL+"
seeds = 1
"""


def sparse_(network: nn.Module, share: float = 0.9) -> nn.Module:
    """Set most weights to zero."""
    for parameter in network.parameters():
        if parameter.dim() > 1:
            parameter.data.masked_fill_(torch.rand(parameter.shape) < share, 0)
    return network.eval()


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Networks of every kind of layer that we know."""
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4))
    conv = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU6(), nn.Conv2d(6, 4, 1, stride=2))
    return {
        "mlp": (sparse_(mlp), torch.rand(1, 16)),
        "conv": (sparse_(conv, 0.7), torch.rand(1, 2, 5, 5)),
        "gru": (sparse_(nn.GRU(4, 6, batch_first=True), 0.8), torch.rand(1, 3, 4)),
    }


def exported(folder: Path) -> dict[str, bytes]:
    """Every network in every encoding and value type that makes a difference."""
    found = {}
    for name, (network, example) in networks().items():
        export_onnx(network, example, folder / f"{name}.onnx", encoding="dense")
        inputs = {"input": example.numpy()}
        wanted = [("sparse", "fp32"), ("bitmask", "fp32"), ("gap8", "fp32"), ("dense", "fp32")]
        wanted += [("gap8", "int8"), ("bitmask", "fp16")] if name == "mlp" else []
        for encoding, values in wanted:
            target = folder / f"{name}-{encoding}-{values}.onnx"
            reencode(folder / f"{name}.onnx", target, Layout(encoding, values), inputs=inputs)
            found[target.stem] = target.read_bytes()
    return found


def foreign() -> dict[str, bytes]:
    """Models as others write them: constants as nodes, a branch, a sparse initializer with an index for each axis."""
    weight = np.eye(4, 3, dtype=np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 3))]
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weight))
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    places = np.argwhere(weight).astype(np.int64)
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(np.ones(3, np.float32), "w"), numpy_helper.from_array(places, "at"), [4, 3]
    )
    yes = helper.make_tensor("yes", TensorProto.BOOL, [], [True])
    output = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branch = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["z"])], "b", [], [output])
    chosen = helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)
    graphs = {
        "constant": helper.make_graph([constant, product], "g", ends[:1], ends[1:]),
        "coordinates": helper.make_graph([product], "g", ends[:1], ends[1:], sparse_initializer=[sparse]),
        "branch": helper.make_graph([chosen], "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w"), yes]),
    }
    opset = [helper.make_opsetid("", 17)]
    return {
        name: helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()
        for name, graph in graphs.items()
    }


def onnx_models() -> Inputs:
    """Every encoding, and models from elsewhere."""
    with TemporaryDirectory() as folder:
        yield from exported(Path(folder)).items()
    yield from foreign().items()


def sparse_runtime() -> Inputs:
    """Networks with our operators for every layer, whether they gain by it or not."""
    with TemporaryDirectory() as folder:
        found = exported(Path(folder))
    for name in networks():
        rewritten = rewrite(onnx.load_from_string(found[f"{name}-dense-fp32"]), lambda *_: True)
        facts = {"target": TARGET, "layers": layer_metadata(rewritten.layers)}
        helper.set_model_props(rewritten.model, {"rigl_compress": json.dumps(facts)})
        yield name, rewritten.model.SerializeToString()


def mnist(folder: Path, samples: int = 8) -> None:
    """A data set of so many images under the names of MNIST."""
    folder.mkdir(parents=True)
    rng = torch.Generator().manual_seed(0)
    for part in ("train", "t10k"):
        images = torch.randint(0, 255, (samples, 28, 28), dtype=torch.uint8, generator=rng)
        images[:, :, 4:] = 0  # few bytes when compressed
        labels = torch.arange(samples, dtype=torch.uint8) % 10
        for name, values in (("images-idx3", images), ("labels-idx1", labels)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(format_idx(values), mtime=0))


def run_folders() -> Inputs:
    """A run that was trained, pruned and benchmarked, without what makes it large."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        mnist(folder / "data" / "mnist")
        overrides = ["model.options.inputs=784"]
        train(parse_recipe(RECIPE, "tiny.toml", overrides), folder / "run", RunEnvironment("cpu", folder / "data"))
        run = Run.open(folder / "run")
        prune_run(run)
        run.bench_file.write_text(json.dumps(report(folder).to_json()))
        run.stages_file.write_text('{"format": 1, "stages": {"prune": {"facts": "0"}}}')
        run.initial_file.unlink()
        yield "whole", folder_bytes(run.path)


def report(folder: Path) -> CompressionReport:
    """A benchmark of a tiny model."""
    network, example = networks()["mlp"]
    path = folder / "mlp.onnx"
    export_onnx(network, example, path, overwrite=True)
    plan = TimingPlan(openings=2, rounds=3, seconds=1)
    return bench([Source("mlp", path, "mlp.onnx")], BenchConfig(plan=plan, profile=True))


def reports() -> Inputs:
    """A report, the plan of a pruning, and the contents of an export."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        plan = {
            "layer": "fc1",
            "inputs": 16,
            "outputs": 4,
            "removed_inputs": [0, 3],
            "removed_outputs": [1],
            "selects": True,
            "new_bias": False,
        }
        pruned = {"format": 1, "plan": {"format": 1, "changes": [plan], "sizes": [], "notes": ["kept"], "inputs": 1}}
        found = report(folder)
        content = export_onnx(*networks()["mlp"], folder / "out.onnx").to_json()
        yield "bench", pack({"bench.json": json.dumps(found.to_json()).encode()})
        yield "prune", pack({"prune.json": json.dumps(pruned).encode()})
        yield "export", pack({"export.json": json.dumps(content).encode()})


def recipes() -> Inputs:
    """Recipes of every kind."""
    yield "rigl", RECIPE.encode()
    yield "whole", parse_recipe(RECIPE, "tiny.toml").to_toml().encode()
    yield from ((name, text.encode()) for name, text in OTHERS.items())


def comparisons() -> Inputs:
    """A comparison of two rows, and a plain recipe."""
    yield "rows", COMPARISON.encode()
    yield "recipe", RECIPE.encode()


def data_sets() -> Inputs:
    """A few samples of every format."""
    with TemporaryDirectory() as folder:
        mnist(Path(folder) / "mnist", samples=2)
        yield "mnist", folder_bytes(Path(folder))
    images = torch.arange(1568, dtype=torch.int64).remainder(7).to(torch.uint8).reshape(2, 28, 28)
    plain = {"images-idx3": images, "labels-idx1": torch.tensor([3, 9], dtype=torch.uint8)}
    files = {f"{part}-{name}-ubyte": format_idx(values) for part in ("train", "t10k") for name, values in plain.items()}
    yield "plain", pack({f"fashion-mnist/{name}": content for name, content in files.items()})
    record = gzip.compress(bytes([7]) + bytes(3072), mtime=0)
    names = [*(f"data_batch_{number}.bin.gz" for number in range(1, 6)), "test_batch.bin.gz"]
    yield "cifar10", pack({f"cifar10/{name}": record for name in names})
    yield "text", pack({"text/a.txt": b"to be or not to be " * 3, "text/b.txt.gz": gzip.compress(b"that is it " * 4)})


def images() -> Inputs:
    """Photographs in every usual format."""
    from PIL import Image

    picture = Image.fromarray(np.arange(300, dtype=np.uint8).reshape(10, 10, 3))
    for kind in ("png", "jpeg", "bmp", "gif", "webp", "tiff"):
        packed = io.BytesIO()
        picture.save(packed, kind)
        content = packed.getvalue()
        yield (
            kind,
            pack(
                {
                    f"train/a/1.{kind}": content,
                    f"train/b/2.{kind}": content,
                    f"val/a/3.{kind}": content,
                    "val/b/4.png": content,
                }
            ),
        )


def archives() -> Inputs:
    """A .zip, a .tar, a .tar.gz and a .tar.xz."""
    files = {"folder/a.bin": b"abc", "b.bin": bytes(100), "other.txt": b"x"}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    yield "zip", packed.getvalue()
    for kind in ("", "gz", "xz", "bz2"):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode=f"w:{kind}") as tar:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
        yield f"tar{kind}", packed.getvalue() if kind else packed.getvalue()[:4096]


def arrays() -> Inputs:
    """Inputs by name."""
    for name, given in (
        ("one", {"input": np.ones((2, 4), np.float32)}),
        ("two", {"input": np.ones((1, 4)), "x": np.ones(1)}),
    ):
        packed = io.BytesIO()
        np.savez(packed, **given)
        yield name, packed.getvalue()


def weights() -> Inputs:
    """Weights of a small network in every format, and in a wrapper of a training script."""
    torch.manual_seed(0)
    own = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).state_dict()
    yield "safetensors", save_safetensors(dict(own))
    for name, content, zipped in (("zip", dict(own), True), ("old", own, False), ("wrapped", {"model": own}, True)):
        packed = io.BytesIO()
        torch.save(content, packed, _use_new_zipfile_serialization=zipped)
        yield name, packed.getvalue()


def options() -> Inputs:
    """Texts of the command line."""
    texts = (
        "image=1,3,224,224",
        "compact:latency<=0.9x",
        "size<=20kB",
        "sparsity.method=rigl,set",
        "train.epochs=[1, 2],[3]",
    )
    yield from ((str(number), text.encode()) for number, text in enumerate(texts))


MAKERS: dict[str, Callable[[], Inputs]] = {
    "onnx": onnx_models,
    "sparse_runtime": sparse_runtime,
    "run_folder": run_folders,
    "recipe": recipes,
    "comparison": comparisons,
    "data": data_sets,
    "images": images,
    "archive": archives,
    "reports": reports,
    "npz": arrays,
    "weights": weights,
    "options": options,
}


def main() -> None:
    """Write all corpora."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else CORPUS
    torch.set_num_threads(1)
    for reader, make in MAKERS.items():
        (target / reader).mkdir(parents=True, exist_ok=True)
        for name, content in make():
            (target / reader / name).write_bytes(content)
        size = sum(file.stat().st_size for file in (target / reader).iterdir())
        print(f"{reader}: {len(list((target / reader).iterdir()))} files, {size:,} bytes")


if __name__ == "__main__":
    main()
