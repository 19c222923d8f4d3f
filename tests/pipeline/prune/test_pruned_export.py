"""What is left of a network is exported like any other: layers that pick their inputs, groups, gates, graphs, GRUs."""

from copy import deepcopy
from pathlib import Path

import onnx
import onnxruntime as ort
import pytest
import torch
from exactness import answers, difference, other_inputs, prune_dead_neurons, pruned_exactly, random_topology, randomize
from prunable import NETWORKS

from rigl_compress.exporters import input_selection as selection
from rigl_compress.exporters.input_selection import InputSelection, choose_selections
from rigl_compress.exporters.onnx_export import export_onnx
from rigl_compress.exporters.reference_outputs import named_inputs
from rigl_compress.models.layer_resizing import Selecting
from rigl_compress.models.nested_tensors import as_inputs
from rigl_compress.pruning.dead_neurons import Pruned
from rigl_compress.runtime.kernel_library import unavailable_reason
from rigl_compress.runtime.rewrite import DOMAIN, rewrite
from rigl_compress.runtime.session import register

MORE = (
    *("transposed-depthwise", "volume-max", "decoder-unflatten", "pixel-shuffle", "slice-stepped", "slice-narrow"),
    *("shuffle-layer", "glu", "group-norm-3-of-6", "input-joined-image"),
)


@pytest.mark.parametrize(
    "name",
    [
        *("mlp-ReLU", "cnn-padded", "grouped", "split-chunk", "squeeze-excite-view", "gru-flat"),
        *(
            "gru-deep-both-ways-sequence",
            "lstm-deep-both-ways-last",
            "rnn-relu-deep-sequence",
            "lstm-one-encoder-decoder",
        ),
        *("gru-deep-both-ways-encoder-decoder", "transposed-1d", "shufflenet-v2"),
        *(pytest.param(name, marks=pytest.mark.slow) for name in MORE),
    ],
)
def test_a_pruned_network_is_exported(name: str, tmp_path: Path) -> None:
    """The export compares the outputs itself, for a batch of another size too."""
    torch.manual_seed(1)
    model = randomize(NETWORKS[name].build(), 1)
    topology, example = random_topology(model, 0.8, 1), NETWORKS[name].example()
    pruned = pruned_exactly(model, topology, example)
    assert pruned.plan
    small = export_onnx(pruned.model, example, tmp_path / "small.onnx", encoding="compact")
    topology.apply_to(model)
    whole = export_onnx(model, example, tmp_path / "whole.onnx", encoding="compact")
    assert small.difference < 1e-5
    assert sum(row.total for row in small.tensors) < sum(row.total for row in whole.tensors)


def pruned_network(name: str, seed: int = 4) -> Pruned:
    torch.manual_seed(seed)
    model = randomize(NETWORKS[name].build(), seed)
    topology = random_topology(model, 0.8, seed)
    topology.apply_to(model)
    return prune_dead_neurons(model, topology, NETWORKS[name].example())


READS = {
    "all": lambda reading: torch.arange(reading.total),
    "a run": lambda reading: torch.arange(int(reading.kept[0]), int(reading.kept[-1]) + 1),
    "what is cheapest": selection.fastest_inputs,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_reading_inputs_that_nothing_needs_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a layer reads beside what it needs, in every network."""
    pruned, example = pruned_network(name), NETWORKS[name].example()
    if not any(isinstance(layer, Selecting) for layer in pruned.model.modules()):
        return
    inputs = other_inputs(example, 1)
    expected = answers(pruned.model, inputs)
    for read in READS.values():
        monkeypatch.setattr(selection, "fastest_inputs", read)
        fast = deepcopy(pruned.model).eval()
        choose_selections(fast, as_inputs(example))
        assert difference(expected, answers(fast, inputs)) < 1e-5


def test_some_networks_lose_inputs() -> None:
    """Or the test above would test nothing."""
    assert any(change.selects for name in ("mlp-ReLU", "cnn-padded") for change in pruned_network(name).plan.changes)


def _kept(reading: InputSelection) -> torch.Tensor:
    return reading.kept


@pytest.mark.skipif(bool(unavailable_reason()), reason=unavailable_reason())
@pytest.mark.parametrize("name", ["mlp-ReLU", "cnn-padded"])
@pytest.mark.parametrize("picks", [False, True])
def test_both_targets_give_what_the_pruned_network_gives(
    name: str, picks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a selection is in the file: for our operators it is folded into the weights."""
    if picks:
        monkeypatch.setattr(selection, "fastest_inputs", _kept)
    pruned, example = pruned_network(name), NETWORKS[name].example()
    exported = export_onnx(pruned.model, example, tmp_path / "small.onnx")
    rewritten = rewrite(onnx.load(exported.path), lambda *_: True).model
    ours = [node for node in rewritten.graph.node if node.domain == DOMAIN]
    assert ours
    assert not {each for node in ours for each in node.input} & {
        name for node in rewritten.graph.node if node.op_type in ("Gather", "Slice") for name in node.output
    }
    options = ort.SessionOptions()
    register(options)
    inputs = other_inputs(example, 3)
    fed = {name: each.numpy() for name, each in named_inputs(as_inputs(inputs)).items()}
    for session in (ort.InferenceSession(exported.path), ort.InferenceSession(rewritten.SerializeToString(), options)):
        found = [torch.from_numpy(each) for each in session.run(None, fed)]
        assert difference(answers(pruned.model, inputs), found) < 1e-5
