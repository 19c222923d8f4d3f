"""What layers cost by their shapes alone: the ResNet-50 of the paper's tables, and every convention."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigl_compress.core.errors import InputError
from rigl_compress.models.layer_flops import FLOP_CONVENTIONS, LayerUse, at_positions, flop_report, layer_cost
from rigl_compress.models.topology import connections

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "rigl_paper_costs.json").read_text())


def resnet50() -> Iterator[LayerUse]:
    """ResNet-50 v1.5 (stride 2 in the 3x3) on 224x224: name, inputs, outputs, kernel, side of the output."""

    def conv(name: str, inputs: int, outputs: int, kernel: int, side: int) -> LayerUse:
        return LayerUse(name, "conv", name, inputs * outputs * kernel**2, outputs, side**2, name != "conv1")

    yield conv("conv1", 3, 64, 7, 112)
    inputs, before = 64, 56
    for stage, width, blocks, side in ((2, 64, 3, 56), (3, 128, 4, 28), (4, 256, 6, 14), (5, 512, 3, 7)):
        for block in "abcdef"[:blocks]:
            branch = f"res{stage}{block}_branch"
            yield conv(f"{branch}2a", inputs, width, 1, before)
            yield conv(f"{branch}2b", width, width, 3, side)
            yield conv(f"{branch}2c", width, 4 * width, 1, side)
            if block == "a":
                yield conv(f"{branch}1", inputs, 4 * width, 1, side)
            inputs, before = 4 * width, side
    yield conv("fc1000", 2048, 1000, 1, 1)


RESNET = tuple(resnet50())
SEEN = at_positions(RESNET, {"conv1": 115 * 115})  # the published counter took the padded 230x230 image for the input


def uniform(sparsity: float, conv1: float) -> dict[str, float]:
    kept = {use.parameter: use.weights * (1 - sparsity) for use in RESNET}
    return kept | {"conv1": RESNET[0].weights * (1 - conv1)}


def test_the_resnet_has_54_layers_and_its_known_number_of_weights() -> None:
    report = flop_report(RESNET, {})
    assert len(report.layers) == 54
    assert report.weights == 25_502_912


@pytest.mark.parametrize(
    ("uses", "convention", "printed"),
    [(SEEN, "micronet", "8.2023e9"), (RESNET, "micronet", "8.1895e9"), (RESNET, "multiply-add", "8.1784e9")],
)
def test_dense_resnet(uses: tuple[LayerUse, ...], convention: str, printed: str) -> None:
    assert f"{flop_report(uses, {}, convention).dense / 1e9:.4f}e9" == printed


@pytest.mark.parametrize(("sparsity", "printed"), [(0.8, 0.2254), (0.9, 0.1285), (0.95, 0.0801), (0.965, 0.0656)])
def test_uniform_resnet_with_a_dense_first_layer(sparsity: float, printed: float) -> None:
    ratio = flop_report(SEEN, uniform(sparsity, conv1=0.0), "micronet").ratio
    assert round(ratio, 4) == printed
    assert ratio == pytest.approx(GOLDEN["resnet50_flops_ratio"]["uniform_first_dense"][str(sparsity)], rel=1e-12)


def test_the_paper_s_tenth_at_90_percent_has_a_sparse_first_layer() -> None:
    assert round(flop_report(SEEN, uniform(0.9, conv1=0.9), "micronet").ratio, 4) == 0.1012


@pytest.mark.parametrize(("sparsity", "printed", "alive"), [("0.8", 0.4153, 5_100_630), ("0.9", 0.2431, 2_550_353)])
def test_erk_resnet(sparsity: str, printed: float, alive: int) -> None:
    layers = GOLDEN["resnet50_erk_sparsity"][sparsity]
    fractional = {use.parameter: use.weights * (1 - layers[use.parameter]) for use in RESNET}
    ratio = flop_report(SEEN, fractional, "micronet").ratio
    assert round(ratio, 4) == printed
    assert ratio == pytest.approx(GOLDEN["resnet50_flops_ratio"]["erk_all"][sparsity], rel=1e-9)
    whole = {use.parameter: connections(1 - layers[use.parameter], use.weights) for use in RESNET}
    assert flop_report(SEEN, whole, "micronet").nonzeros == alive


@pytest.mark.parametrize("name", FLOP_CONVENTIONS)
@given(alive=st.integers(0, 1000), positions=st.integers(0, 50), channels=st.integers(1, 50))
def test_every_convention_is_linear_in_the_weights(name: str, alive: int, positions: int, channels: int) -> None:
    flops = FLOP_CONVENTIONS[name]  # the cost of pruning is the cost of the mean density because of this
    none, some, twice = (flops(count, positions, channels) for count in (0, alive, 2 * alive))
    assert twice - some == some - none == 2 * alive * positions
    assert none >= 0


def test_a_layer_cannot_have_a_negative_number_of_weights_alive() -> None:
    with pytest.raises(InputError, match="cannot have -1"):
        layer_cost(RESNET[0], -1)
