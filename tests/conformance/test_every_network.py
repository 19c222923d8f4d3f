"""What every registered network can do, just by being registered: be traced, sparsified, pruned, exported, counted."""

from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
from exactness import answers, difference, pruned_exactly, random_topology, randomize, replayed
from small_models import every_model, small
from torch import nn

from rigl_compress.exporters.onnx_costs import graph_costs
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.fx_tracing import traced
from rigl_compress.models.model_registry import MODELS, ModelSpec
from rigl_compress.models.sparse_model import SparseModel
from rigl_compress.models.sparse_parameters import layer_shapes, sparse_layers, sparse_parameters
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.prune.stage import prune, pruned_model
from rigl_compress.pipeline.train.checkpoint import load_checkpoint, save_checkpoint
from rigl_compress.sparsity.methods import METHODS, never
from rigl_compress.sparsity.sparsifier import Sparsifier

SPARSITY = 0.9
# A method of each way to update: in the place of a step, after it, behind a sparse forward pass, and by gates of units.
ONE_OF_EACH_KIND = {
    (method.replaces_step, method.straight_through, method.gating is not None): name
    for name, method in METHODS.items()
    if method.start is not None and method.when is not never
}.values()


def drawn(spec: ModelSpec, seed: int = 0) -> nn.Module:
    """The network with statistics and biases that are not trivial."""
    torch.manual_seed(seed)
    return randomize(spec.build(), seed)


def slow_to_export(name: str) -> list[pytest.MarkDecorator]:
    """Exporting takes a second for every few layers."""
    with torch.device("meta"):
        return [pytest.mark.slow] if len(sparse_parameters(small(name).build())) > 40 else []


def sparse(spec: ModelSpec) -> SparseModel:
    """A network of random connections as training would leave it."""
    torch.manual_seed(0)
    model = spec.build()
    topology = random_topology(model, SPARSITY, 0)
    topology = Topology({name: mask for name, mask in topology.items() if name in sparse_parameters(model)})
    topology.apply_to(model)
    return SparseModel.capture(spec, model, topology, 0, {})


@every_model
def test_it_is_traced(name: str) -> None:
    spec = small(name)
    model = drawn(spec)
    assert difference(answers(traced(model), spec.example(2)), answers(model, spec.example(2))) == 0


@every_model
def test_it_is_pruned_to_one_that_computes_the_same(name: str) -> None:
    spec = small(name)
    model = drawn(spec).double()  # deep networks of random weights have no digits to lose
    example = spec.example(2)
    example = example.double() if example.is_floating_point() else example
    pruned = pruned_exactly(model, random_topology(model, SPARSITY, 0), example, 1e-9)
    assert pruned.plan
    assert difference(answers(replayed(model, pruned), example), answers(pruned.model, example)) == 0
    assert pruned.report.after.parameters < pruned.report.before.parameters


@every_model
def test_it_is_saved_and_rebuilt_whole_and_pruned(name: str, tmp_path: Path) -> None:
    model = sparse(small(name))
    for each in (model, pruned_model(model, prune(model))):
        each.save(tmp_path / "model.safetensors")
        again = SparseModel.load(tmp_path / "model.safetensors")
        assert again.spec == each.spec
        example = each.spec.example(2)
        assert difference(answers(again.build(), example), answers(each.build(), example)) == 0


@pytest.mark.parametrize("name", [pytest.param(name, marks=slow_to_export(name)) for name in MODELS])
def test_it_is_exported(name: str, tmp_path: Path) -> None:
    model = sparse(small(name))
    exported = export_onnx(model.build(), model.spec.example(), tmp_path / "net.onnx", encoding="compact")
    session = ort.InferenceSession(exported.path, providers=["CPUExecutionProvider"])
    example = model.spec.example(3, seed=1)
    got = [torch.from_numpy(each) for each in session.run(None, {"input": example.numpy()})]
    assert difference(answers(model.build(), example), got) < 1e-4
    rows = {row.name: row for row in exported.tensors}
    zeros = {layer.name: layer.total - layer.active for layer in model.topology.layers}
    assert sum(row.total - row.nonzeros for row in rows.values()) >= 0.99 * sum(zeros.values())
    # What the torch counter says of the network, the file says too, zeros skipped and not.
    costs = graph_costs(onnx.load(exported.path), {"input": model.spec.example().numpy()})
    masks = {key: parameter != 0 for key, parameter in sparse_parameters(model.build()).items()}
    report = count_flops(model.build(), model.spec.example(), masks)
    assert (costs.dense_flops, costs.sparse_flops) == (report.dense, pytest.approx(report.sparse))


@every_model
def test_its_cost_is_counted_to_the_last_layer(name: str) -> None:
    spec = small(name)
    with torch.device("meta"):
        model = spec.build()
    report = count_flops(model, spec.example().to("meta"), dict.fromkeys(sparse_parameters(model), 0.5))
    assert not report.uncounted
    counted = {row.parameter for row in report.layers}
    assert all({name, part.parameter} & counted for name, part in sparse_layers(model).items())
    assert 0.45 * report.dense < report.sparse < 0.75 * report.dense


@every_model
@pytest.mark.filterwarnings("ignore:sparse training does not reach")
@pytest.mark.parametrize("method", ONE_OF_EACH_KIND)
def test_it_is_trained_sparsely_and_taken_up_again(name: str, method: str, tmp_path: Path) -> None:
    spec = small(name)

    def started() -> tuple[nn.Module, torch.optim.Optimizer, Sparsifier]:
        torch.manual_seed(0)
        model = spec.build()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        settings = {"method": method, "sparsity": 0.8, "dense": (), "interval": 2, "total_steps": 100}
        return model, optimizer, Sparsifier(model, optimizer, **settings)  # type: ignore[arg-type]

    def take_steps(model: nn.Module, optimizer: torch.optim.Optimizer, sparse: Sparsifier) -> None:
        for seed in range(3):
            model(spec.example(2, seed)).logsumexp(dim=-1).square().mean().backward()
            if not sparse.step():
                optimizer.step()
            optimizer.zero_grad()

    job, other = started(), started()
    take_steps(*job)
    model, _, sparse = job
    topology = sparse.topology
    topology.check_fits(model)
    assert 0.78 < topology.sparsity < 0.81
    assert all(not weight.detach()[~topology[name]].any() for name, weight in sparse_parameters(model).items())
    save_checkpoint(tmp_path / "checkpoint", *job, {"epochs_done": 1, "seen": {}, "seconds": 0.0, "scaler": {}})
    load_checkpoint(tmp_path / "checkpoint", *other)
    assert other[2].topology == topology
    take_steps(*job)
    take_steps(*other)
    assert other[2].topology == sparse.topology
    for one, two in zip(model.state_dict().values(), other[0].state_dict().values(), strict=True):
        assert torch.equal(one, two)


@every_model
@pytest.mark.filterwarnings("ignore:sparse training does not reach")
def test_every_layer_keeps_its_own_number_of_connections(name: str) -> None:
    """Gates of recurrent layers too: they are layers to the distribution, and to drop and grow."""
    torch.manual_seed(0)
    spec = small(name)
    model = spec.build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    sparse = Sparsifier(model, optimizer, sparsity=0.8, distribution="erk", interval=1, fraction=0.5, total_steps=100)

    def counts() -> dict[str, int]:
        return {
            name: int(part.of(sparse.topology[part.parameter]).sum()) for name, part in sparse_layers(model).items()
        }

    before, first = counts(), sparse.topology
    model(spec.example(2)).logsumexp(dim=-1).square().mean().backward()
    assert sparse.step()
    assert counts() == before
    assert sparse.topology.changed(first) > 0
    assert before.keys() == layer_shapes(model).keys()
