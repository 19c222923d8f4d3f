"""Runs that start from weights: of files, of a network's own code, of largest weights, with parts frozen."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch
from safetensors.torch import save_file
from tiny import Cli, StoppedError, Trainer, stop_at, untouched
from torch import Tensor

import rigl_compress as rc
from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.pipeline.train import training_loop as loop
from rigl_compress.pipeline.train.stage import RunEnvironment, train
from rigl_compress.pipeline.workspace import Run

NORMED = """
from torch import nn

def net():
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))
    if {trained}:
        nn.init.normal_(model[2].weight)
    return model
"""
STILL = ["learning_rate.peak=1e-30", "train.epochs=1", "sparsity.method=static"]  # the weights stay what they were


@pytest.fixture
def weights(tmp_path: Path) -> dict[str, Tensor]:
    """Of the tiny network, and in tmp_path/weights.safetensors."""
    spec = tiny.recipe().model.with_options(classes=10)
    torch.manual_seed(99)
    found = {name: each.clone() for name, each in spec.build().state_dict().items()}
    save_file(found, tmp_path / "weights.safetensors")
    return found


def logged(trainer: Trainer, *overrides: str, run: str = "run", **options: bool) -> tuple[Run, list[str]]:
    lines: list[str] = []
    environment = RunEnvironment("cpu", trainer.data_dir, log=lines.append)
    train(tiny.recipe(*overrides), trainer.root / run, environment, **options)
    return Run.open(trainer.root / run), lines


def start(trainer: Trainer, name: str = "weights.safetensors") -> str:
    return f"start.weights='{trainer.root / name}'"


# Files


def test_a_file_of_weights(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    run, lines = logged(trainer, start(trainer), "init.scale=3.0", "start.topology=magnitude", *STILL)
    tiny.assert_same_tensors(SparseModel.load(run.initial_file).weights, weights)
    assert lines == [
        f"initial weights: {trainer.root / 'weights.safetensors'}",
        "[init] is not used: the weights are not drawn",
    ]
    for name, mask in run.topology("end").items():
        assert torch.equal(run.model().weights[name], weights[name] * mask)


def test_renamed_with_a_new_head(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    other = {f"model.{name}": each for name, each in weights.items() if not name.startswith("fc3")}
    other |= {"model.head.weight": torch.zeros(1000, 16), "model.head.bias": torch.zeros(1000)}
    torch.save({"state_dict": other, "epoch": 90}, trainer.root / "w.ckpt")
    run, lines = logged(
        *(trainer, start(trainer, "w.ckpt"), r"start.rename={'^model\.' = ''}", "start.skip=['fc3', 'head']"),
        *("start.topology=magnitude", *STILL),
    )
    found = SparseModel.load(run.initial_file).weights
    assert torch.equal(found["fc1.weight"], weights["fc1.weight"])
    assert found["fc3.weight"].any()
    (line,) = lines
    assert line.endswith(
        "w.ckpt; the weights are its 'state_dict'; as built: fc3.weight (160 weights), fc3.bias (10 weights)"
    )


def test_a_run_folder_is_a_folder_of_weights(trainer: Trainer) -> None:
    earlier = trainer("train.epochs=1", run="earlier")
    run, _ = logged(trainer, start(trainer, "earlier"), *STILL)
    tiny.assert_same_tensors(SparseModel.load(run.initial_file).weights, earlier.model().weights)


def test_the_recipe_of_the_run_says_it_all(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    del weights
    settings = [start(trainer), "start.skip=['fc3']", "start.topology=magnitude", "optimizer.groups=[{match='fc2'}]"]
    run = trainer(*settings, "train.epochs=1")
    assert run.recipe() == tiny.recipe(*settings, "train.epochs=1")


# Connections drawn among trained weights

LOST = "the initial weights are pretrained, but {} keeps a random subset of them and loses most of what they learned"


@pytest.mark.parametrize(
    ("settings", "lost"),
    [
        (["sparsity.method=static"], "static"),
        (["sparsity.method=rigl"], "rigl"),
        (["sparsity.method=rigl", "start.topology=magnitude"], ""),
        (["sparsity.method=pruning"], ""),
        (["sparsity.method=dense"], ""),
        (["sparsity.method=dnw"], ""),
    ],
)
def test_random_connections_among_trained_weights_are_logged(
    trainer: Trainer, weights: dict[str, Tensor], settings: list[str], lost: str
) -> None:
    _, lines = logged(trainer, start(trainer), "train.epochs=1", *settings)
    assert [line.partition(":")[0] for line in lines if "random subset" in line] == (
        [LOST.format(lost)] if lost else []
    )
    _, fresh = logged(trainer, "train.epochs=1", *[each for each in settings if "topology" not in each], run="fresh")
    assert not any("random subset" in line for line in fresh)


def test_weights_as_built_and_initial_ones_are_not_pretrained(trainer: Trainer) -> None:
    _, built = logged(trainer, "start.weights=model", "sparsity.method=rigl", "train.epochs=1", run="first")
    earlier = f"start.run='{trainer.root / 'first'}'"
    _, initial = logged(trainer, earlier, "start.weights=initial", "sparsity.method=rigl", *STILL[:2])
    assert not any("random subset" in line for line in (*built, *initial))
    _, final = logged(trainer, earlier, "start.weights=final", "sparsity.method=rigl", *STILL[:2], run="third")
    assert any("random subset" in line for line in final)


@pytest.mark.parametrize("trained", [False, True])
def test_a_function_that_returns_a_trained_network_is_known_by_its_norms(
    trainer: Trainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trained: bool
) -> None:
    name = f"normed_{trained}".lower()
    (tmp_path / f"{name}.py").write_text(NORMED.format(trained=trained), encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    _, lines = logged(trainer, "train.epochs=1", "model.options={}", f"model.name={name}:net", "sparsity.method=rigl")
    assert any(line.startswith(LOST.format("rigl")) for line in lines) == trained
    assert any(line.startswith("batch-norm statistics are not re-estimated") for line in lines) == trained


# The largest weights


@pytest.mark.parametrize("word", ["magnitude", "magnitude-global"])
def test_training_begins_at_the_largest_weights(trainer: Trainer, weights: dict[str, Tensor], word: str) -> None:
    run = trainer(start(trainer), f"start.topology={word}")
    model = tiny.recipe().model.with_options(classes=10).build()
    model.load_state_dict(weights)
    make = {"magnitude": rc.magnitude_topology, "magnitude-global": rc.global_magnitude_topology}[word]
    assert run.topology("start") == make(model, tiny.recipe().sparsity)
    assert run.topology("end").active == run.topology("start").active
    assert run.topology("end") != run.topology("start")


@pytest.mark.parametrize("method", ["rigl", "dnw"])
def test_resuming_needs_no_file(
    trainer: Trainer, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The checkpoint has the weights; what DNW keeps of each layer was chosen at the start."""
    del weights
    monkeypatch.setattr(loop, "TICK", 1)
    settings = [start(trainer), "start.topology=magnitude-global", f"sparsity.method={method}", "train.epochs=3"]
    settings += ["optimizer.groups=[{match = 'fc3', rate = 0.5}, {match = 'fc2.bias', frozen = true}]"]
    whole = trainer(*settings, run="whole")
    with pytest.raises(StoppedError):
        trainer(*settings, run="stopped", listener=stop_at(tiny.STEPS_PER_EPOCH + 7))
    (trainer.root / "weights.safetensors").unlink()
    stopped = trainer(*settings, run="stopped", resume=True)
    tiny.assert_same_model(stopped.model(), whole.model())
    assert stopped.topology("start") == whole.topology("start")
    assert stopped.recipe() == whole.recipe()


# Pruned in one shot


def test_training_begins_at_the_pruned_network(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    settings = [start(trainer), "start.topology=obs", "start.samples=100", "sparsity.dense=['first']"]
    run = trainer(*settings, *STILL)
    model = tiny.recipe().model.with_options(classes=10).build()
    model.load_state_dict(weights)
    chosen = rc.magnitude_topology(model, tiny.recipe("sparsity.dense=['first']").sparsity)
    assert [each.active for each in run.topology("start").layers] == [each.active for each in chosen.layers]
    assert run.topology("start") == run.topology("end") != chosen
    tiny.assert_same_tensors(SparseModel.load(run.initial_file).weights, weights)
    kept = run.topology("end")["fc2.weight"]
    assert not torch.equal(run.model().weights["fc2.weight"], weights["fc2.weight"] * kept), "they make up for the rest"


def test_resuming_a_run_that_was_pruned_at_its_start(
    trainer: Trainer, weights: dict[str, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    del weights
    monkeypatch.setattr(loop, "TICK", 1)
    settings = [start(trainer), "start.topology=obs", "sparsity.dense=['first']", "train.epochs=3"]
    whole = trainer(*settings, run="whole")
    with pytest.raises(StoppedError):
        trainer(*settings, run="stopped", listener=stop_at(tiny.STEPS_PER_EPOCH + 7))
    stopped = trainer(*settings, run="stopped", resume=True)
    tiny.assert_same_model(stopped.model(), whole.model())


def test_methods_that_begin_dense_do_not_begin_pruned(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    del weights
    with pytest.raises(InputError, match="begins with every connection, so that the topology 'obs' means nothing"):
        trainer(start(trainer), "start.topology=obs", "sparsity.method=pruning")


# Frozen parts


def test_frozen_layers_keep_their_weights_and_stay_dense(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    frozen = "optimizer.groups=[{match = 'fc1', frozen = true}]"
    run, lines = logged(trainer, start(trainer), "start.topology=magnitude", frozen, "train.epochs=2")
    model = run.model()
    assert torch.equal(model.weights["fc1.weight"], weights["fc1.weight"])
    assert torch.equal(model.weights["fc1.bias"], weights["fc1.bias"])
    assert not torch.equal(model.weights["fc2.bias"], weights["fc2.bias"])
    found = {layer.name: layer.sparsity for layer in model.topology.layers}
    assert found["fc1.weight"] == 0
    assert sum(layer.active for layer in model.topology.layers[1:]) == 110  # 0.8 of 544 are gone: fc1 is not counted
    assert lines[1] == "not trained, dense: fc1.weight (18,816 weights), fc1.bias (24 weights)"


def test_frozen_layers_of_an_earlier_run_keep_its_connections(trainer: Trainer) -> None:
    earlier = trainer("train.epochs=1", run="earlier")
    settings = [f"start.run='{earlier.path}'", "start.weights=final", "start.topology=end", "sparsity.method=static"]
    run, lines = logged(trainer, *settings, "optimizer.groups=[{match = 'fc1', frozen = true}]", "train.epochs=1")
    assert run.topology("end") == earlier.topology("end")
    assert torch.equal(run.model().weights["fc1.weight"], earlier.model().weights["fc1.weight"])
    assert lines[-1].startswith("not trained, sparse as the given topology has them: fc1.weight")


# What the network's own code returns


CODE = """
import warnings
import torch
from torch import nn

def net(classes=10):
    print("built")
    warnings.warn("old weights")
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, classes))
    for each in net.parameters():
        nn.init.constant_(each, float(torch.ones(1).sum()) / 2)
    return net

def empty(classes=10):
    return nn.Sequential(nn.Flatten(), nn.AdaptiveAvgPool1d(classes), nn.LayerNorm(classes))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"learnt_{tmp_path.name.replace('-', '_')}"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / f"{name}.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "code")
    return name


def all_halves(run: Run) -> bool:
    return all(bool((each == 0.5).all()) for each in SparseModel.load(run.initial_file).weights.values())


@pytest.mark.parametrize("settings", [[], ["start.weights=model"], ["start.weights=model", "init.weights=he-normal"]])
def test_weights_of_a_factory_are_kept(trainer: Trainer, module: str, settings: list[str]) -> None:
    run, lines = logged(trainer, "model.options={}", f"model.name={module}:net", *settings, *STILL)
    assert all_halves(run)
    assert f"initial weights: as {module}:net returns them" in lines
    assert ("[init] is not used: the weights are not drawn" in lines) == (len(settings) == 2)


@pytest.mark.filterwarnings("ignore:old weights")
def test_it_is_not_said_again_when_a_run_is_resumed(trainer: Trainer, module: str) -> None:
    settings = ["model.options={}", f"model.name={module}:net", *STILL]
    logged(trainer, *settings)
    _, lines = logged(trainer, *settings, resume=True)
    assert lines == []


def test_they_are_drawn_anew_where_the_recipe_asks_for_it_and_that_is_said(trainer: Trainer, module: str) -> None:
    run, lines = logged(trainer, "model.options={}", f"model.name={module}:net", "init.weights=he-normal", *STILL)
    assert not all_halves(run)
    assert any(line.startswith("initial weights: drawn again (he-normal) by [init] of the recipe") for line in lines)


def test_a_recipe_for_another_network_does_not_throw_weights_away(cli: Cli, trainer: Trainer, module: str) -> None:
    """`--model` with a shipped recipe whose [init] was written for its own network."""
    short = ["--set", "train.epochs=1", "--set", "sparsity.layers={}", "--set", "optimizer.groups=[]"]
    run = trainer.root / "run"
    done = cli("train", "--recipe", "mnist-rigl", "--model", f"{module}:net", "-o", run, *short, "--json",
               "--data-dir", trainer.data_dir)  # fmt: skip
    assert done.code == 0, done
    assert all_halves(Run.open(run))
    assert done.out.startswith("{"), "what the factory prints does not stand in the result"
    lines = done.err.splitlines()
    assert (lines.count("built"), lines.count("warning: old weights")) == (1, 1), "built several times, shown once"


def test_a_factory_is_called_once_before_training(trainer: Trainer, module: str) -> None:
    import importlib

    calls, code = [], importlib.import_module(module)
    real: Callable[..., torch.nn.Module] = code.net
    code.net = lambda classes=10: calls.append(classes) or real(classes)  # type: ignore[attr-defined, func-returns-value]
    seen: list[int] = []
    environment = RunEnvironment("cpu", trainer.data_dir, listener=lambda _: seen.append(len(calls)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(tiny.recipe("model.options={}", f"model.name={module}:net", *STILL), trainer.root / "run", environment)
    assert seen[0] == 1


# Refused: nothing is written


def test_weights_that_do_not_fit(trainer: Trainer, weights: dict[str, Tensor]) -> None:
    del weights
    message = trainer.refused(start(trainer), "model.options.hidden=[24, 5]")
    assert "weights.safetensors: the weights do not fit the model (3 of another shape: fc2.weight is 16×24" in message
    assert 'start.skip = ["fc2", "fc3"]' in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["start.weights=last"], "start.weights is 'last', which does not exist: pass a .safetensors"),
        (["start.weights=finall"], "or one of the words fresh, initial, final, model"),
        (["start.weights=."], "start.weights: . has no weights in it"),
        (["start.topology=magnitude", "sparsity.method=pruning"], "method 'pruning' begins with every connection"),
        (["optimizer.groups=[{match='fc9', rate=0.1}]"], "optimizer.groups: layer 'fc9' matches nothing: did you"),
        (["optimizer.groups=[{match='*.weight', frozen=true}]"], "every layer that could be sparse is kept dense"),
    ],
)  # fmt: skip
def test_what_cannot_be_started_from(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, overrides: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert message in trainer.refused(*overrides)


def test_a_model_without_anything_to_make_sparse(trainer: Trainer, module: str) -> None:
    message = trainer.refused("model.options={}", f"model.name={module}:empty")
    assert "only Flatten, AdaptiveAvgPool1d, LayerNorm: use a model with such layers" in message


def test_a_start_from_a_file_of_its_own_folder(trainer: Trainer) -> None:
    run = trainer("train.epochs=1")
    with untouched(trainer.root), pytest.raises(InputError, match=r"start.weights is .*, the folder of this run"):
        trainer("train.epochs=1", f"start.weights='{run.model_file}'", overwrite=True)
