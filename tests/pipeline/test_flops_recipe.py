"""The cost of a recipe, to the printed digit of the paper's MNIST table (FACTS 2.1, 2.2)."""

import pytest
import tiny
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.pipeline.recipe import load_recipe
from rigl_compress.pipeline.recipe_flops import flops_json, parameter_densities, recipe_flops
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.sparsity_config import SparsityConfig


def test_the_authors_recipe() -> None:
    facts = flops_json(load_recipe("mnist-rigl-authors"), "multiply-add")
    assert facts["dense_training_gflops"]["paper-table"] == pytest.approx(13521.6, abs=1e-6)
    assert facts["training_gflops"]["paper-table"] == pytest.approx(482.0179, abs=5e-5)
    assert facts["training_gflops"]["appendix-h"] == pytest.approx(538.47, abs=5e-3)
    assert facts["training_gflops"]["exact-schedule"] == pytest.approx(446.3457, abs=5e-5)


def test_inference() -> None:
    report = recipe_flops(load_recipe("mnist-rigl-authors"))
    assert report.dense == 2 * (784 * 300 + 300 * 100 + 100 * 10)
    assert report.sparse == 2 * (2352 + 3270 + 1000)


@pytest.mark.parametrize(("change", "smaller"), [("data.holdout=10000", 5 / 6), ("train.epochs=100", 1 / 2)])
def test_training_is_in_proportion_to_the_samples_seen(change: str, smaller: float) -> None:
    whole, part = (flops_json(load_recipe("mnist-demo", each), "multiply-add") for each in ([], [change]))
    if change.startswith("train"):
        smaller = 100 / load_recipe("mnist-demo").train.epochs
    ratio = part["dense_training_gflops"]["appendix-h"] / whole["dense_training_gflops"]["appendix-h"]
    assert ratio == pytest.approx(smaller)


@pytest.mark.parametrize("method", [name for name, each in METHODS.items() if not (each.needs_topology or each.narrow)])
def test_every_method_costs_something_between_static_and_dense(method: str) -> None:
    def cost(name: str) -> dict[str, float]:
        return flops_json(load_recipe("mnist-rigl-authors", [f"sparsity.method={name}"]), "multiply-add")[
            "training_gflops"
        ]

    found, least, most = cost(method), cost("static"), cost("dense")
    assert all(least[name] * 0.999 <= found[name] <= most[name] * 1.001 for name in found)


def test_small_dense_is_counted_as_narrow_as_it_is_trained() -> None:
    facts = flops_json(tiny.recipe("sparsity.method=small-dense", "sparsity.sparsity=0.5"), "multiply-add")
    weights = sum(layer["weights"] for layer in facts["layers"])
    assert 0.4 * (784 * 24 + 24 * 16 + 160) < weights <= 0.5 * (784 * 24 + 24 * 16 + 160)
    assert facts["training_gflops"]["appendix-h"] < 0.55 * facts["dense_training_gflops"]["appendix-h"]


def test_an_unknown_convention() -> None:
    with pytest.raises(InputError, match="unknown FLOP convention 'macs'"):
        recipe_flops(tiny.recipe(), "macs")


def test_an_end_beyond_the_run() -> None:
    with pytest.raises(InputError, match="updates end at step 999999999, but the run has only"):
        flops_json(tiny.recipe("sparsity.end=999999999"), "multiply-add")


def test_the_wide_resnet_at_80_percent_costs_what_the_reproduction_of_the_paper_counted() -> None:
    """The reproducibility report of the paper has 0.35× for WRN-22-2 by ERK."""
    spec = ModelSpec("wrn-22-2")
    with torch.device("meta"):
        model = spec.build()
    shares = parameter_densities(model, SparsityConfig(sparsity=0.8, distribution="erk"))
    assert round(count_flops(model, spec.example().to("meta"), shares).ratio, 2) == 0.35


def test_the_gates_of_a_gru_are_counted_in_whole_connections() -> None:
    gru = torch.nn.GRU(10, 7, device="meta")
    shares = parameter_densities(gru, SparsityConfig(sparsity=0.9, distribution="uniform", dense=()))
    assert shares == {"weight_ih_l0": 3 * 7 / 210, "weight_hh_l0": 3 * 5 / 147}  # 70 − 63 and 49 − 44 per gate


def test_a_network_for_other_data() -> None:
    with pytest.raises(InputError, match=r"model 'char-gru' does not take inputs of shape \(1, 28, 28\) \(mnist\)"):
        recipe_flops(load_recipe("mnist-demo", ["model={}", "model.name=char-gru", "sparsity.layers={}"]))
