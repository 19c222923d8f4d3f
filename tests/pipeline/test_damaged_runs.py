"""Run folders that are damaged, or made to do harm: every reader says one sentence, whatever stands in the files."""

import json
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from safetensors.torch import save_file

from rigl_compress.core.artifacts import load_artifact, read_json, save_artifact
from rigl_compress.core.errors import InputError
from rigl_compress.experiments.loss_landscape import LandscapeConfig, landscape
from rigl_compress.models.prune_plan import PrunePlan
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.bench.bench_report import CompressionReport
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.run_inspection import inspection, pixel_map
from rigl_compress.pipeline.stage_cache import Stage, up_to_date
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run

NO_CHOICE = {"selects": True, "removed_inputs": []}
KINDS = {"checkpoint": "checkpoint", "topology-end": "topology", "model": "sparse-model", "pruned": "sparse-model"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, data_dir: Path) -> Run:
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(tiny.recipe("train.epochs=2"), folder, RunEnvironment("cpu", data_dir))
    prune_run(Run(folder))
    return Run(folder)


@pytest.fixture
def run(whole: Run, tmp_path: Path) -> Run:
    shutil.copytree(whole.path, tmp_path / "run")
    return Run(tmp_path / "run")


def readers(run: Run, data_dir: Path) -> dict[str, list[Callable[[], object]]]:
    """Everything that reads a file of a run folder, by the file."""
    return {
        "topology-end": [lambda: inspection(run)],
        "model": [lambda: SparseModel.load(run.model_file).build()],
        "pruned": [lambda: SparseModel.load(run.pruned_file).build()],
        "checkpoint": [lambda: train(run.recipe(), run.path, RunEnvironment("cpu", data_dir), resume=True)],
        "others": [
            lambda: run.keep_metrics(1),
            lambda: SparseModel.load(run.initial_file).build(),
            lambda: PrunePlan.from_json(read_json(run.prune_file)["plan"]),
            lambda: prune_run(run, write=False),
        ],
    }


def complaints(looks: Iterable[Callable[[], object]]) -> list[str]:
    """What is said; anything but an InputError is a failure of the test."""
    said = []
    for look in looks:
        try:
            look()
        except InputError as error:
            said.append(str(error))
            assert len(said[-1].splitlines()) == 1
    return said


def all_complaints(run: Run, data_dir: Path) -> list[str]:
    return complaints(look for looks in readers(run, data_dir).values() for look in looks)


def change(run: Run, name: str, edit: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    file = run.path / f"{name}.safetensors"
    tensors, content = load_artifact(file, KINDS[name])
    content = json.loads(json.dumps(content))
    edit(tensors, content)
    save_artifact(file, KINDS[name], tensors, content)


def test_a_whole_run_is_read_without_a_word(run: Run, data_dir: Path) -> None:
    assert all_complaints(run, data_dir) == []


@pytest.mark.parametrize(
    ("name", "edit", "words"),
    [
        ("model", lambda t, c: c.pop("masks"), "key 'masks' is missing"),
        ("model", lambda t, c: c.update(masks=3), "masks is 3, expected a list"),
        ("model", lambda t, c: c["masks"].append(c["masks"][0]), "lists 4 masks and holds 3"),
        ("model", lambda t, c: c["masks"].pop(), "lists 2 masks and holds 3"),
        ("model", lambda t, c: c.update(model=[]), "model is [], expected a table"),
        ("model", lambda t, c: c["model"].pop("name"), "key 'model.name' is missing"),
        ("model", lambda t, c: c["model"].update(name=7), "model.name is 7, expected a text"),
        ("model", lambda t, c: c["model"].update(origin=""), "unknown key 'model.origin'"),
        ("model", lambda t, c: c["model"].update(options=[1]), "model.options is [1], expected a table"),
        ("model", lambda t, c: c["model"].update(input_shape=[2**40, 28]), "at most 268,435,456 values in a sample"),
        ("model", lambda t, c: c["model"].update(input_shape=[-1]), "expected lengths of 1 or more"),
        ("model", lambda t, c: c["model"]["options"].update(hidden=[10**9, 16]), "another model's weights"),
        (
            "model",
            lambda t, c: c["model"]["options"].update(hidden=[1] * 5000),
            "5,000 hidden layers, expected",
        ),
        ("model", lambda t, c: c["model"]["options"].update(hidden="abc"), "cannot be built with"),
        ("model", lambda t, c: c.update(step="x"), "step is 'x', expected a whole number"),
        ("model", lambda t, c: t.update(odd=torch.zeros(1)), "lists 3 masks and holds 4"),
        ("model", lambda t, c: t.update({"mask:fc1.weight": t["mask:fc1.weight"].byte()}), "expected torch.bool"),
        ("model", lambda t, c: t.update({"weight:fc1.weight": t["weight:fc1.weight"].int()}), "expected float32"),
        ("model", lambda t, c: t.update({"weight:fc1.bias": t["weight:fc1.bias"].bool()}), "another model's weights"),
        ("model", lambda t, c: t.update({"weight:fc1.weight": torch.zeros(0)}), "does not fit the weights"),
        ("pruned", lambda t, c: c["model"].update(plan=[]), "model.plan is [], expected a table"),
        ("pruned", lambda t, c: c["model"]["plan"].update(format=2), "format 2, this version reads 1"),
        ("pruned", lambda t, c: c["model"]["plan"].pop("changes"), "another model's weights"),
        ("pruned", lambda t, c: c["model"]["plan"].update(changes=[3]), "plan.changes[0] is 3, expected a table"),
        ("pruned", lambda t, c: c["model"]["plan"].update(sizes=[["a"]]), "expected a list of 2"),
        ("pruned", lambda t, c: c["model"]["plan"]["changes"][0].update(inputs="a"), "expected a whole number"),
        ("pruned", lambda t, c: c["model"]["plan"]["changes"][0].update(layer="no"), "which is not in the network"),
        ("pruned", lambda t, c: c["model"]["plan"]["changes"][0].update(removed_inputs=[10**9]), "does not have, or"),
        ("pruned", lambda t, c: c["model"]["plan"]["changes"][0].update(removed_inputs=[1, 1]), "or some twice"),
        (
            "pruned",
            lambda t, c: c["model"]["plan"]["changes"][-1].update(NO_CHOICE),
            "removes none",
        ),
        ("topology-end", lambda t, c: c.pop("shapes"), "shapes is None, expected a table"),
        ("topology-end", lambda t, c: c["shapes"].update(extra=[1]), "it has shapes of 4 layers"),
        ("topology-end", lambda t, c: c["shapes"].update({"fc1.weight": [2**40, 2**40]}), "expected one bit for each"),
        ("topology-end", lambda t, c: c["shapes"].update({"fc1.weight": [-1, -8]}), "expected one bit for each"),
        ("topology-end", lambda t, c: c["shapes"].update({"fc1.weight": "ab"}), "expected a list"),
        ("topology-end", lambda t, c: t.update({"fc1.weight": t["fc1.weight"].float()}), "is torch.float32"),
        ("checkpoint", lambda t, c: c.pop("optimizer"), "key 'optimizer' is missing"),
        ("checkpoint", lambda t, c: c.update(progress={}), "key 'progress.epochs_done' is missing"),
        ("checkpoint", lambda t, c: c["progress"].update(epochs_done=99), "is of epoch 99 of 2"),
        ("checkpoint", lambda t, c: c["progress"].update(seen={}), "is of epoch 2 of 2 and incomplete"),
        ("checkpoint", lambda t, c: c["progress"].update(scaler={"scale": 1.0}), "another train.precision"),
        ("checkpoint", lambda t, c: c["counters"].update(steps=None), "counters.steps is None"),
        ("checkpoint", lambda t, c: t.pop("random"), "it is damaged (KeyError: 'random')"),
        ("checkpoint", lambda t, c: t.update(random=torch.zeros(3)), "it is damaged (TypeError"),
        ("checkpoint", lambda t, c: t.update({"mask/fc1.weight": t["mask/fc1.weight"].int()}), "expected torch.bool"),
        ("checkpoint", lambda t, c: t.pop("mask/fc1.weight"), "the saved masks do not fit layer 'fc1.weight'"),
        ("checkpoint", lambda t, c: t.update({"model/fc1.weight": torch.zeros(3)}), "another model's weights"),
        (
            "checkpoint",
            lambda t, c: t.update({"optimizer/fc1.weight/momentum_buffer": torch.zeros(3)}),
            "the optimizer's 'momentum_buffer' of 'fc1.weight' has shape (3,)",
        ),
    ],
)
def test_what_is_wrong_is_said(run: Run, data_dir: Path, name: str, edit: Any, words: str) -> None:
    change(run, name, edit)
    said = complaints(readers(run, data_dir)[name])
    assert any(words in line for line in said), said


@pytest.mark.parametrize(
    "header", ['{"format": 1, "kind": "topology"}', '{"format": 1, "kind": "topology", "content": 3}']
)
def test_a_header_without_content(tmp_path: Path, header: str) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x", metadata={"rigl_compress": header})
    with pytest.raises(InputError, match="has no table of contents in its header"):
        Topology.load(tmp_path / "x")


DEEP = "[" * 3000 + "]" * 3000


@pytest.mark.parametrize("content", ["3", "[]", "{}", "null", DEEP, "1" * 5000, '{"format": 1, "stages": [3]}'])
def test_json_of_another_kind(run: Run, data_dir: Path, content: str) -> None:
    for file in (run.result_file, run.bench_file, run.stages_file, run.prune_file):
        file.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=r"result\.json"):
        run.result()
    with pytest.raises(InputError, match=r"bench\.json"):
        CompressionReport.load(run.bench_file)
    assert not up_to_date(Stage("train", dict, (), (), lambda: None), run.stages_file)


@pytest.mark.parametrize(
    ("change_result", "words"),
    [
        ({"recipe": 3}, "recipe is 3, expected a text"),
        ({"final_error": "low"}, "final_error is 'low', expected a number"),
        ({"final_error": None}, "final_error is None"),
        ({"metric": "mood"}, "unknown metric 'mood'"),
        ({"metric": ["error"]}, "metric is ['error'], expected a text"),
        ({"pruned": {"kflops": 1}}, "key 'pruned.architecture' is missing"),
        ({"pruned": 3}, "pruned is 3, expected a table"),
        ({"inference_flops": {"dense": "x", "sparse": 1}}, "inference_flops.dense is 'x'"),
        ({"training_gflops": {"exact": "x"}}, "training_gflops.exact is 'x'"),
        ({"seconds": "1"}, "seconds is '1'"),
    ],
)
def test_a_result_of_another_kind(run: Run, change_result: dict[str, Any], words: str) -> None:
    run.result_file.write_text(json.dumps({**run.result(), **change_result}), encoding="utf-8")
    with pytest.raises(InputError, match="restore the file or train again") as caught:
        run.result()
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "line", ["3", "[]", "null", "{}", '{"epoch": "1"}', '{"epoch": 1, "error": "low"}', DEEP, "cut"]
)
def test_a_line_of_metrics_of_another_kind(run: Run, line: str) -> None:
    good = run.metrics_file.read_text(encoding="utf-8")
    run.metrics_file.write_text(f"{line}\n{good}", encoding="utf-8")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 1 is not a line of metrics"):
        run.keep_metrics(5)


@pytest.mark.parametrize("text", [f"x = {DEEP}", "x = " + "1" * 5000, "name = 3", "", "[model]\nname = 3", "\0"])
def test_a_recipe_of_another_kind(run: Run, text: str) -> None:
    run.recipe_file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.toml") as caught:
        run.recipe()
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", ["../out", "/abs", "..", "", " ", "a\\b", "C:x", "a\nb"])
def test_a_recipe_does_not_say_where_its_run_goes(name: str) -> None:
    """Without --output the folder is called after the recipe."""
    with pytest.raises(InputError, match="expected a folder name without slashes"):
        tiny.recipe(f"name={json.dumps(name)}")


def test_topologies_of_another_network(run: Run) -> None:
    Topology.full({"fc1.weight": (2, 2)}).save(run.topology_file("start"))
    with pytest.raises(InputError, match="has topologies of different networks"):
        inspection(run)


@pytest.mark.parametrize("pixels", [torch.tensor([0, 784]), torch.tensor([-1, 0]), torch.tensor([0.0, 1.0])])
def test_pixels_that_an_image_does_not_have(run: Run, pixels: torch.Tensor) -> None:
    model = run.model()
    name = next(iter(model.topology))
    small = Topology.full({name: (3, 2)})
    weights = {name: torch.ones(3, 2), f"{name.removesuffix('.weight')}.index": pixels}
    odd = SparseModel(model.spec, weights, small)
    with pytest.raises(InputError, match="picks pixels that an image of 28 × 28 does not have"):
        pixel_map(odd, small)


def test_a_landscape_between_networks_that_only_say_they_are_alike(run: Run, whole: Run, data_dir: Path) -> None:
    change(run, "model", lambda t, c: (t.pop("mask:fc3.weight"), c["masks"].pop()))
    config = LandscapeConfig(("linear",), points=2, samples=20)
    with pytest.raises(InputError, match="differ in their sparse layers"):
        landscape(whole, run, config, RunEnvironment("cpu", data_dir), lambda *_: None)
    change(run, "model", lambda t, c: t.pop("weight:fc3.bias"))
    with pytest.raises(InputError, match="another model's weights"):
        landscape(whole, run, config, RunEnvironment("cpu", data_dir), lambda *_: None)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_random_damage(run: Run, data_dir: Path, seed: int) -> None:
    """Bytes of a file are changed, cut out, or put in, mostly in the header."""
    draw = random.Random(seed)
    for file in sorted(run.path.iterdir()):
        before = file.read_bytes()
        content = bytearray(before)
        for _ in range(draw.choice((1, 1, 3))):
            place = draw.randrange(min(len(content), draw.choice((64, 4096, 10**9))))
            end = place + draw.choice((0, 1, 1, 4))
            content[place:end] = draw.choice((b"", b"0", b"9", b'"', b"[", b"null", b"-1", draw.randbytes(1)))
        file.write_bytes(content)
        all_complaints(run, data_dir)
        file.write_bytes(before)
