"""What a sparsifier starts from: what is refused, and what is said once because nobody would expect it."""

import warnings
from typing import Any

import pytest
import torch
from small_training import Loop, perceptron, sgd
from tiny import Trainer, recipe
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from rigl_compress.core.errors import InputError
from rigl_compress.models.sparse_parameters import left_dense
from rigl_compress.models.topology import Topology
from rigl_compress.pipeline.train.small_dense import in_training
from rigl_compress.pipeline.train.warning_lines import warnings_to_log
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.reachability import cut_off
from rigl_compress.sparsity.sparsifier import Sparsifier


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"budget": "includ"}, "unknown budget 'includ': did you mean 'include'"),
        ({"dense": "first"}, r"dense is 'first', expected several names: write dense=\(\"first\",\)"),
        ({"dense": (1,)}, "dense is .* expected several names"),
        ({"variants": "round-up"}, r"write variants=\(\"round-up\",\)"),
        ({"sparsity": "0.9"}, "sparsity is 0.9, expected at least 0"),
        ({"layers": {"0": "0.9"}}, "sparsity of layer '0' is 0.9"),
        ({"interval": 1.5}, "interval is 1.5, expected a whole number of steps"),
        ({"topology": {}}, "topology is a dict, expected a Topology"),
        ({"topology": Topology({"0.bias": torch.ones(20).bool()})}, "masks for 0.bias, which sparse training does not"),
        ({"method": "small-dense"}, 'narrows the network of a recipe: .*method="dense"'),
        ({"method": "lottery"}, '"lottery" needs the topology .*topology='),
    ],
)
def test_settings_that_would_be_ignored_are_refused(settings: dict[str, Any], message: str) -> None:
    model = perceptron()
    with pytest.raises(InputError, match=message):
        Sparsifier(model, sgd(model), total_steps=100, **settings)


def test_names_may_come_as_a_list() -> None:
    assert Loop(dense=["first"]).sparse.topology["0.weight"].all()


def test_small_dense_is_trained_by_a_recipe(trainer: Trainer) -> None:
    assert in_training(recipe("sparsity.method=small-dense").sparsity).method == "dense"
    result = trainer("sparsity.method=small-dense", "sparsity.sparsity=0.5", "train.epochs=1").result()
    assert (result["method"], result["sparsity"], result["left_dense"]) == ("small-dense", 0, {})


# Topologies


def test_layers_that_a_topology_lacks_stay_dense_and_that_is_said() -> None:
    model, mask = perceptron(), torch.rand(16, 20) < 0.3
    with pytest.warns(
        UserWarning, match=r"no mask for 0\.weight \(240 weights\), 4\.weight \(64 weights\): they stay dense"
    ):
        sparse = Sparsifier(model, sgd(model), topology=Topology({"2.weight": mask}), total_steps=9)
    assert sparse.topology["2.weight"].equal(mask)
    assert sparse.topology["0.weight"].all()
    assert sparse.topology["4.weight"].all()
    assert model[0].weight.all()  # type: ignore[operator]


def test_gates_do_not_bring_connections_back() -> None:
    """A structured method on a network that was sparse already: dead connections and dead units add up."""
    given = Loop(method="static").sparse.topology
    loop = Loop(method="l1-filter", sparsity=0.5, end=3, topology=given).train(6)
    loop.sparse.finish()
    found = loop.sparse.topology
    assert found.changed(given) == 0
    assert 0 < found.active < given.active
    assert loop.nonzeros == found.active


@pytest.mark.parametrize("method", ["rigl", "pruning", "snip", "dnw"])
def test_layers_without_a_connection_are_named(method: str) -> None:
    model = perceptron()
    with pytest.warns(UserWarning, match=r"no connection is left in 2\.weight: the sparsity is too high"):
        Sparsifier(model, sgd(model), method=method, sparsity=0.5, layers={"2": 1 - 1e-12}, total_steps=9)


def test_a_network_that_nothing_gets_through_is_named() -> None:
    model = perceptron()
    masks = {"0.weight": torch.zeros(20, 12), "2.weight": torch.zeros(16, 20), "4.weight": torch.ones(4, 16)}
    masks["0.weight"][3, 5] = masks["2.weight"][7, 4] = 1  # the first layer ends at 3, the second begins at 4
    topology = Topology({name: mask.bool() for name, mask in masks.items()})
    with pytest.warns(UserWarning, match=r"from the inputs to 2\.weight, 4\.weight: the output is constant"):
        Sparsifier(model, sgd(model), method="static", topology=topology, total_steps=9)
    answers = model(torch.randn(8, 12))
    assert torch.equal(answers, answers[:1].expand(8, 4))


def test_nothing_is_said_of_what_gets_through() -> None:
    """By a path through every layer, beside a dead one (residual), through groups, and where nobody knows."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.body, self.head = nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x).relu()
            found: Tensor = self.head((x + self.body(x)).flatten(1))
            return found

    model = Residual()
    masks = {name: torch.zeros_like(weight, dtype=torch.bool) for name, weight in model.named_parameters()}
    masks["stem.weight"][2] = True
    masks["head.weight"][0, 9] = True  # channel 2 of four, each of 2 × 2 pixels
    assert cut_off(model, masks) == ["body.weight"]
    masks["head.weight"][0, 9], masks["head.weight"][0, 3] = False, True  # channel 0
    assert cut_off(model, masks) == ["body.weight", "head.weight"]
    masks["body.weight"][0, 0], masks["stem.weight"][0] = True, True
    assert cut_off(model, masks) == []


# What sparse training does not reach


class Unreached(nn.Module):
    """One of everything that stays dense."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.place = nn.Parameter(torch.zeros(1, 5, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True)
        self.norm = nn.LayerNorm([5, 8])
        self.pair = nn.Bilinear(8, 8, 8)
        self.normed = parametrizations.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Use them all."""
        x = self.norm(self.embedding(x) + self.place)
        x = (x + self.attention(x, x, x)[0]).mean(1)
        found: Tensor = self.head(self.normed(self.pair(x, x)))
        return found


EXPECTED = {
    "place": 40,
    "embedding.weight": 80,
    "attention.bias_k": 8,
    "attention.bias_v": 8,
    "pair.weight": 512,
    "normed.parametrizations.weight.original0": 8,
    "normed.parametrizations.weight.original1": 64,
}


def test_everything_that_stays_dense_is_named_with_its_size() -> None:
    model = Unreached()
    assert left_dense(model) == EXPECTED
    with pytest.warns(UserWarning, match=r"does not reach place \(40 weights\), .*attention\.bias_k \(8") as said:
        sparse = Sparsifier(model, sgd(model), sparsity=0.5, total_steps=9)
    assert len(said) == 1
    assert sparse.left_dense == EXPECTED
    assert list(sparse.topology) == ["attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]


@pytest.mark.parametrize("method", ["dense", "static"])
def test_a_dense_run_has_nothing_to_say(method: str) -> None:
    model = Unreached() if METHODS[method].dense else perceptron()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sparsifier(model, sgd(model), method=method, sparsity=0.5, total_steps=9).left_dense == {}


def test_recurrent_layers_stay_dense_where_units_have_gates() -> None:
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.head = nn.GRU(6, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = self.head(self.gru(x)[0])
            return found

    model = Reader()
    with pytest.warns(UserWarning, match=r"does not reach gru\.weight_ih_l0 \(90 weights\)"):
        sparse = Sparsifier(model, sgd(model), method="l1-filter", sparsity=0.5, total_steps=9)
    assert sparse.left_dense == {"gru.weight_ih_l0": 90, "gru.weight_hh_l0": 75}
    assert Sparsifier(model, sgd(model), sparsity=0.5, total_steps=9).left_dense == {}


def test_attention_stays_dense_where_units_have_gates() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), nn.Linear(8, 4))
    with pytest.warns(UserWarning, match=r"does not reach 1\.self_attn\.in_proj_weight \(192 weights\)"):
        sparse = Sparsifier(model, sgd(model), method="l1-filter", sparsity=0.5, total_steps=9)
    assert sparse.left_dense == {
        "1.self_attn.in_proj_weight": 192,
        "1.self_attn.out_proj.weight": 64,
        "1.linear1.weight": 128,
        "1.linear2.weight": 128,
    }


def test_a_layer_without_a_shape_is_an_error() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(InputError, match=r"'0\.weight' has no shape yet: run the model on a sample first"):
        Sparsifier(model, sgd(model), total_steps=9)


def test_where_somebody_listens_it_is_said_there() -> None:
    said: list[str] = []
    model = Unreached()
    with warnings_to_log(said.append):
        Sparsifier(model, sgd(model), sparsity=0.5, total_steps=9)
    assert len(said) == 1
    assert said[0].startswith("warning: sparse training does not reach place (40 weights), ")
