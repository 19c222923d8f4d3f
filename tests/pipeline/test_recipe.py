"""Recipes: every shipped one, overrides, M× training, and what is said about wrong ones."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.data.byte_sequences import Sequences
from rigl_compress.data.dataset import DataSet, Split
from rigl_compress.data.dataset_registry import DATASETS
from rigl_compress.data.masked_bytes import MaskedSequences
from rigl_compress.experiments.spec import shipped_comparisons
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.sparse_parameters import sparse_parameters
from rigl_compress.models.storage_size import layer_bytes
from rigl_compress.pipeline.recipe import (
    DataConfig,
    Recipe,
    StartConfig,
    TrainConfig,
    load_recipe,
    parse_recipe,
    shipped_recipes,
)
from rigl_compress.pipeline.train.progress import ignore_message, ignore_progress
from rigl_compress.pipeline.train.stage import build_job, model_spec
from rigl_compress.pipeline.train.warning_lines import warnings_to_log
from rigl_compress.sparsity.sparsity_config import SparsityConfig

ROOT = Path(__file__).parents[2]
every_recipe = pytest.mark.parametrize("name", list(shipped_recipes()))


def error_of(text: str, *overrides: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_recipe(text, "mine.toml", overrides)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


# The shipped ones


def test_what_is_shipped_is_the_folder_recipes() -> None:
    shipped = {**shipped_recipes(), **shipped_comparisons()}
    assert set(shipped) == {path.stem for path in (ROOT / "recipes").glob("*.toml")}
    assert set(shipped_comparisons()) == {"mnist-augmented", "mnist-structured", "vit-methods"}
    assert "mnist-rigl-authors" in shipped_recipes()


@every_recipe
def test_it_is_named_like_its_file_and_says_what_it_is(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert len(recipe.about) > 20


@every_recipe
def test_the_resolved_recipe_is_the_recipe(name: str) -> None:
    recipe = load_recipe(name)
    assert parse_recipe(recipe.to_toml(), "resolved") == recipe


def shaped_like(config: DataConfig) -> DataSet:
    """As many samples as the real data set, of its shape, all one and the same zero in memory."""
    spec = DATASETS[config.name]
    shape = spec.shape(config.options)

    def split(count: int) -> Split | Sequences | MaskedSequences:
        zero = torch.zeros(1, dtype=torch.int64).expand(count)
        if spec.metric in ("bpc", "masked_bits"):
            text = Sequences(torch.zeros(shape[0] + 1, dtype=torch.uint8), zero, shape[0])
            return text if spec.metric == "bpc" else MaskedSequences(text)
        return Split(torch.zeros(1).expand(count, *shape), zero)

    sequences = config.options.get("limit", 540_000_000) // shape[0], 2_000  # WikiText-103 has about as many
    own = sequences if spec.metric == "bpc" else (1_000, 200)  # somebody's photographs
    train, test = map(split, spec.counts if spec.counts[0] else own)
    return DataSet(config.name, "zeros", spec.classes or 10, shape, train, test, spec.metric)


LARGE = ("imagenet", "image-folder")  # narrow networks will do for these, but for the slow tests


@every_recipe
def test_it_can_be_built(name: str) -> None:
    """All that `train` does before the first step. What an earlier run would give is left out."""
    recipe = load_recipe(name)
    check_build(replace(recipe, model=recipe.model.with_options(width=0.25)) if recipe.data.name in LARGE else recipe)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in shipped_recipes() if load_recipe(name).data.name in LARGE])
def test_a_large_one_can_be_built_in_full(name: str) -> None:
    check_build(load_recipe(name))


def check_build(recipe: Recipe) -> None:
    recipe = replace(recipe, start=None, distill=None)
    if recipe.sparsity.method == "lottery":
        recipe = replace(recipe, sparsity=replace(recipe.sparsity, method="static"))
    data = shaped_like(recipe.data)
    data = data.hold_out(recipe.data.holdout) if recipe.data.holdout else data
    with warnings_to_log(ignore_message):  # embeddings stay dense, and that is said
        job = build_job(recipe, model_spec(recipe, data), data, torch.device("cpu"), ignore_progress)
    assert job.sparse.topology.active > 0
    assert job.rate(0) > 0


@pytest.mark.parametrize("data", ["mnist-5k", "fashion-mnist"])
def test_the_demo_can_be_built_on_other_data(data: str) -> None:
    recipe = load_recipe("mnist-demo", [f"data.name={data}"])
    found = shaped_like(recipe.data)
    build_job(recipe, model_spec(recipe, found), found, torch.device("cpu"), ignore_progress)


def test_the_authors_recipe_is_appendix_b() -> None:
    recipe = load_recipe("mnist-rigl-authors")
    assert recipe.sparsity.layers == {"fc1": 0.99, "fc2": 0.891, "fc3": 0.0}
    assert (recipe.train.epochs, recipe.train.batch, recipe.sparsity.interval) == (200, 100, 100)
    assert recipe.sparsity.schedule(120_000).end == 50_000
    rate = recipe.learning_rate.per_step(600, 200)
    assert [rate(600 * epoch + step) for epoch in (75, 95) for step in (-1, 0)] == pytest.approx(
        [0.2, 0.2 / 3, 0.2 / 3, 0.2 / 9]
    )


@pytest.mark.parametrize(
    ("name", "steps", "end"),
    [
        ("mnist-rigl", 120_000, 90_000),
        ("mnist-rigl-small-augmented", 360_000, 270_000),
        ("mnist-methods", 9_000, 6_750),
    ],
)
def test_the_last_update_of_the_mnist_recipes(name: str, steps: int, end: int) -> None:
    assert load_recipe(name).scaled_sparsity.schedule(steps).end == end


@pytest.mark.parametrize("name", list(shipped_recipes()))
def test_every_recipe_scales_with_its_epochs(name: str) -> None:
    """Shorter, the rate goes through the same values, and the updates end at the same share of the run."""
    full, short = load_recipe(name), load_recipe(name, ["train.epochs=1", "train.multiplier=1"])
    steps = 900
    long = steps * full.train.all_epochs
    assert short.scaled_sparsity.schedule(steps).end / steps == pytest.approx(
        full.scaled_sparsity.schedule(long).end / long, abs=2 / steps
    )
    before = full.learning_rate.per_step(steps, full.train.all_epochs, full.train.multiplier)
    after = short.learning_rate.per_step(steps, 1)
    shares = [each / 20 + 0.013 for each in range(20)]
    assert [after(int(share * steps)) for share in shares] == pytest.approx(
        [before(int(share * long)) for share in shares], rel=0.1
    )


@every_recipe
def test_the_epochs_that_it_speaks_of_are_its_own(name: str) -> None:
    """All of them, or those in which the topology changes."""
    recipe = load_recipe(name)
    own = {recipe.train.epochs, round(recipe.train.epochs * recipe.sparsity.end_share)}
    assert {int(each) for each in re.findall(r"(\d+)\s+epochs", recipe.about)} <= own


IMAGENET = [name for name in shipped_recipes() if name.startswith("imagenet")]


@pytest.mark.parametrize("name", IMAGENET)
def test_the_imagenet_recipes_are_section_4_1(name: str) -> None:
    recipe = load_recipe(name)
    assert (recipe.optimizer.momentum, recipe.optimizer.weight_decay, recipe.train.label_smoothing) == (0.9, 1e-4, 0.1)
    steps_per_epoch = 1_281_167 // 4096
    assert (recipe.train.batch, steps_per_epoch * recipe.train.epochs) == (4096, 32_136)
    rate = recipe.learning_rate.per_step(steps_per_epoch, recipe.train.epochs)
    epochs = (0, 2.5, 5, 29, 31, 69, 71, 89, 91, 102)
    expected = [1.6 / 1560, 0.8, 1.6, 1.6, 0.16, 0.16, 0.016, 0.016, 0.0016, 0.0016]
    assert [rate(round(epoch * steps_per_epoch)) for epoch in epochs] == pytest.approx(expected, rel=2e-3)
    sparsity = recipe.sparsity
    assert (sparsity.interval, sparsity.fraction, sparsity.decay) == (100, 0.3, "cosine")
    assert (sparsity.schedule(32_136).end, sparsity.schedule(5 * 32_136).end) == (25_000, 125_000)
    assert recipe.train.multiplier == (5 if "mobilenet" in name else 1)


@pytest.mark.parametrize("name", [name for name in IMAGENET if "mobilenet" in name])
def test_depthwise_convolutions_and_first_layers_stay_dense(name: str) -> None:
    recipe = load_recipe(name)
    with torch.device("meta"):
        model = recipe.model.build()
    densities = recipe.sparsity.densities(model)
    dense = {layer for layer, density in densities.items() if density == 1}
    modules = dict(model.named_modules())
    depthwise = {layer for layer in densities if getattr(modules[layer.removesuffix(".weight")], "groups", 1) > 1}
    assert len(depthwise) in (13, 17)
    assert {"conv1.weight", *depthwise} <= dense
    assert min(densities.values()) <= 0.25


def test_the_big_sparse_recipe_has_the_size_of_the_dense_network() -> None:
    recipe = load_recipe("imagenet-mobilenet-v1-big-sparse")
    with torch.device("meta"):
        big, usual = recipe.model.build(), ModelSpec("mobilenet-v1").build()
    assert recipe.model.options == {"width": 1.98}
    densities = recipe.sparsity.densities(big)
    sizes = {name: weight.numel() for name, weight in sparse_parameters(big).items()}
    with_masks = sum(layer_bytes(size, densities[name] * size) for name, size in sizes.items())
    assert with_masks == pytest.approx(
        4 * sum(weight.numel() for weight in sparse_parameters(usual).values()), rel=0.03
    )


def test_the_cifar_recipe_is_section_4_3() -> None:
    recipe = load_recipe("cifar10-wrn22-2")
    assert (recipe.train.epochs, recipe.train.batch, recipe.optimizer.weight_decay) == (250, 128, 5e-4)
    rate = recipe.learning_rate.per_step(390, 250)
    assert [rate(step) for step in (0, 29_999, 30_000, 60_000, 90_000)] == pytest.approx(
        [0.1, 0.1, 0.02, 0.004, 0.0008]
    )
    assert recipe.sparsity.schedule(97_500).end == 75_000
    assert (recipe.sparsity.interval, recipe.sparsity.fraction) == (100, 0.3)


def test_the_wikitext_recipe_is_appendix_i() -> None:
    recipe = load_recipe("wikitext-gru")
    assert (recipe.optimizer.name, recipe.optimizer.weight_decay, recipe.learning_rate.peak) == ("adam", 5e-4, 7e-4)
    assert (recipe.train.batch, recipe.train.clip_gradient, recipe.sparsity.sparsity) == (32, 10.0, 0.75)
    assert (recipe.sparsity.interval, recipe.sparsity.fraction) == (100, 0.1)
    assert recipe.sparsity.schedule(200_000).end == 200_000
    with torch.device("meta"):
        densities = recipe.sparsity.densities(recipe.model.build())
    assert densities.keys() == {
        *(f"gru.weight_{kind}_l0.{gate}" for kind in ("ih", "hh") for gate in ("reset", "update", "new")),
        *("readout1.weight", "readout2.weight"),
    }
    assert set(densities.values()) == {0.25}


# Text to recipe


def test_a_name_is_enough() -> None:
    assert parse_recipe('name = "mine"', "mine.toml") == Recipe("mine")


def test_a_recipe_with_everything_survives_toml() -> None:
    recipe = Recipe(
        'a "quoted" näme',
        about="two\nlines",
        seed=2**63 - 1,
        data=DataConfig("fashion-mnist", 100),
        model=ModelSpec("mlp", {"hidden": [3, 4], "width": 0.5}),
        train=TrainConfig(epochs=3, multiplier=0.5, precision="bfloat16", compile=True),
        sparsity=SparsityConfig(
            "snfs",
            0.5,
            dense=("first", "conv*"),
            layers={"fc1.weight": 0.25},
            end=9,
            options={"momentum": 0.5},
            variants=("round-up",),
        ),
        start=StartConfig("runs/a b", "initial", "end", "pruned"),
    )
    assert parse_recipe(recipe.to_toml(), "resolved") == recipe


def test_no_dense_layers_is_not_the_default() -> None:
    assert parse_recipe('name = "a"\n[sparsity]\ndense = []', "a").sparsity.dense == ()
    assert Recipe("a").sparsity.dense is None
    recipe = parse_recipe('name = "a"\n[sparsity]\ndense = []', "a")
    assert parse_recipe(recipe.to_toml(), "resolved") == recipe


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed = 1", "mine.toml: key 'name' is missing"),
        ("name = mine", "mine.toml is not valid TOML: Invalid value"),
        ('name = "a"\n[train]\nepoch = 3', "mine.toml: unknown key 'train.epoch': did you mean 'epochs'? Known: a"),
        ('name = "a"\n[trian]', "mine.toml: unknown key 'trian': did you mean 'train'? Known: about"),
        ('name = "a"\n[sparsity]\nintervall = 3', "unknown key 'sparsity.intervall': did you mean 'interval'?"),
        ('name = "a"\n[train]\nepochs = "3"', "mine.toml: train.epochs is '3', expected a whole number"),
        ('name = "a"\n[train]\nepochs = 3.5', "mine.toml: train.epochs is 3.5, expected a whole number"),
        ('name = "a"\ntrain = 3', "mine.toml: train is 3, expected a table"),
        ('name = "a"\nformat = 2', "mine.toml: format is 2, expected one of 1"),
        ('name = "a"\n[start]\nweights = "final"', "start.weights is 'final', of an earlier run: name its folder with"),
        ('name = "a"\n[start]\ntopology = "end"', "start.topology is 'end', of an earlier run: name its folder with"),
        ('name = "a"\n[start]\nskip = ["fc"]', "start.skip is for weights that are loaded: set start.weights to a"),
        ('name = "a"\n[start]\ntopology = "magnitud"', "start.topology is 'magnitud', expected one of fresh, start"),
        ('name = "a"\n[start]\nweights = "w.pt"\nrename = {"(" = ""}', "start.rename: '(' is no regular expression"),
        ('name = "a"\n[optimizer]\ngroups = [{rate = 2}]', "key 'optimizer.groups[0].match' is missing"),
        ('name = "a"\n[optimizer]\ngroups = [{match = "*", rate = 0}]', "of '*', rate is 0.0, expected a factor"),
        ('name = "a"\n[sparsity.layers]\nfc1 = "all"', "sparsity.layers.fc1 is 'all', expected a number"),
        ('name = "a"\n[sparsity]\nsparsity = 1.0', "sparsity is 1.0, expected at least 0 and below 1"),
        ('name = "a"\n[sparsity]\nsparsity = nan', "sparsity is nan, expected at least 0 and below 1"),
        ('name = "a"\n[sparsity.layers]\nfc1 = -0.1', "sparsity of layer 'fc1' is -0.1, expected at least 0"),
        ('name = "a"\n[sparsity]\ndistribution = "erdos"', "unknown distribution 'erdos'"),
        ('name = "a"\n[train]\nbatch = 0', "train.batch is 0, expected 1 or more"),
        ('name = "a"\n[train]\nmultiplier = 0', "train.multiplier is 0.0, expected a factor above 0"),
        ('name = "a"\n[train]\nmultiplier = inf', "train.multiplier is inf, expected a factor above 0"),
        ('name = "a"\n[train]\nlabel_smoothing = 1.5', "label_smoothing is 1.5, expected a share between 0 and 1"),
        ('name = "a"\n[train]\nclip_gradient = -1', "train.clip_gradient is -1.0, expected a norm"),
        ('name = "a"\n[train]\nprecision = "float8"', "train.precision is 'float8', expected one of float32, bfloat16"),
        ('name = "a"\n[learning_rate]\npeak = 0', "learning_rate: peak is 0.0"),
        ('name = "a"\nseed = -1', "seed is -1, expected a whole number from 0"),
        ('name = "a"\n[sparsity]\nend_share = 1.5', "end_share is 1.5, expected a share of the run above 0, at most 1"),
        (f'name = "a"\nseed = {2**63}', f"seed is {2**63}, expected a whole number from 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_one_sentence(text: str, message: str) -> None:
    assert message in error_of(text)


# Overrides


@pytest.mark.parametrize(
    ("override", "path", "value"),
    [
        ("train.epochs=3", "train.epochs", 3),
        (" train.epochs = 3 ", "train.epochs", 3),
        ("learning_rate.peak=1e-2", "learning_rate.peak", 0.01),
        ("learning_rate.drops=[60, 80]", "learning_rate.drops", (60.0, 80.0)),
        ("train.compile=true", "train.compile", True),
        ("data.name=mnist-5k", "data.name", "mnist-5k"),
        ('data.name="mnist-5k"', "data.name", "mnist-5k"),
        ("about=a = b", "about", "a = b"),
        ("about=", "about", ""),
        ("sparsity.layers.fc1=0.5", "sparsity.layers", {"fc1": 0.5}),
        ('sparsity.layers."fc1.weight"=0.5', "sparsity.layers", {"fc1.weight": 0.5}),
        ("sparsity.layers.'fc*'=0.5", "sparsity.layers", {"fc*": 0.5}),
        ("sparsity.layers={fc1 = 0.5}", "sparsity.layers", {"fc1": 0.5}),
        ("sparsity.dense=[]", "sparsity.dense", ()),
        ('sparsity.dense=["first", "fc*"]', "sparsity.dense", ("first", "fc*")),
        ("model.options.hidden=[3]", "model.options", {"hidden": [3]}),
        ("start.run=runs/a", "start.run", "runs/a"),
    ],
)
def test_overrides(override: str, path: str, value: Any) -> None:
    found: Any = parse_recipe('name = "a"', "a", [*(["model.name=mlp"] if "model" in override else []), override])
    for key in path.split("."):
        found = getattr(found, key)
    assert found == value


def test_the_last_override_wins_over_the_recipe_and_the_others() -> None:
    assert tiny.recipe("train.epochs=7", "train.epochs=8").train == replace(tiny.recipe().train, epochs=8)


def test_an_override_adds_to_a_table() -> None:
    text = 'name = "a"\n[sparsity.layers]\nfc1 = 0.5'
    assert parse_recipe(text, "a", ["sparsity.layers.fc2=0.25"]).sparsity.layers == {"fc1": 0.5, "fc2": 0.25}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.epochs", "override 'train.epochs' is not of the form key=value, e.g. train.epochs=10"),
        ("=3", "override '=3' is not of the form key=value"),
        ("sparsity.layers.fc*=0.5", "'sparsity.layers.fc*' is not a key: write table.key, with quotes around names"),
        ("train..epochs=3", "'train..epochs' is not a key"),
        ("name.first=3", "override 'name.first=3' goes into 'name', which is not a table"),
        ("train.epoch=3", "mine.toml: unknown key 'train.epoch': did you mean 'epochs'?"),
        ("train.epochs=many", "mine.toml: train.epochs is 'many', expected a whole number"),
        ("train.epochs=[3]", "mine.toml: train.epochs is [3], expected a whole number"),
        ("data.options={mean=[.5]}", "{mean=[.5]} is not valid TOML: Invalid value"),
        ("learning_rate.drops=60,80", "mine.toml: learning_rate.drops is '60,80', expected a list"),
    ],
)
def test_wrong_overrides(override: str, message: str) -> None:
    assert message in error_of('name = "a"', override)


# Files


def test_a_file_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(tiny.RECIPE, encoding="utf-8")
    assert load_recipe(str(path)) == tiny.recipe()


@pytest.mark.parametrize("source", ["mnist-rigl-author", "/nowhere/mnist-rigl-authors.toml", "", "."])
def test_no_such_recipe(source: str) -> None:
    with pytest.raises(InputError, match="pass the path of a TOML file or a name") as caught:
        load_recipe(source)
    assert f"no recipe {source!r}" in str(caught.value)
    assert "mnist-rigl-authors" in str(caught.value)


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match=r"cannot read .*mine\.toml: .*; a recipe is a text file in TOML"):
        load_recipe(str(tmp_path / "mine.toml"))


# M× training


def test_the_multiplier_scales_epochs_anchors_and_the_end_but_not_the_interval() -> None:
    text = """
    name = "a"
    [learning_rate]
    peak = 1.0
    drops = [4, 8]
    warmup = 1
    [train]
    epochs = 10
    [sparsity]
    end = 70
    interval = 7
    """
    once, thrice = parse_recipe(text, "a"), parse_recipe(text, "a", ["train.multiplier=3"])
    assert (once.train.all_epochs, thrice.train.all_epochs) == (10, 30)
    assert (once.scaled_sparsity.end, thrice.scaled_sparsity.end) == (70, 210)
    assert thrice.scaled_sparsity.interval == 7
    rate = once.learning_rate.per_step(10, 10)
    slow = thrice.learning_rate.per_step(10, 30, 3)
    assert [round(slow(step), 6) for step in (29, 119, 120, 239, 240)] == [1, 1, 0.1, 0.1, 0.01]
    assert [slow(3 * step + 2) for step in range(100)] == pytest.approx([rate(step) for step in range(100)])


@pytest.mark.parametrize(("multiplier", "epochs", "end"), [(0.5, 5, 35), (0.01, 1, 1), (1.25, 12, 88), (5, 50, 350)])
def test_broken_multipliers(multiplier: float, epochs: int, end: int) -> None:
    recipe = parse_recipe('name = "a"', "a", ["train.epochs=10", "sparsity.end=70", f"train.multiplier={multiplier}"])
    assert (recipe.train.all_epochs, recipe.scaled_sparsity.end) == (epochs, end)


def test_without_an_end_it_is_three_quarters_of_the_longer_run() -> None:
    recipe = parse_recipe('name = "a"', "a", ["train.multiplier=3"])
    assert recipe.scaled_sparsity.end is None
    assert recipe.scaled_sparsity.schedule(3000).end == 2250
