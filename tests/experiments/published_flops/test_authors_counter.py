"""ResNet-50 and MobileNet-v1 as the paper's authors count them, to the digit of their notebooks and README."""

import json
from pathlib import Path

import pytest

from rigl_compress.experiments.published_flops.authors_counter import Counted, dense, sparse
from rigl_compress.experiments.published_flops.sparse_networks import DEPTHWISE, LAYERS
from rigl_compress.models.flop_counter import count_flops
from rigl_compress.models.model_registry import ModelSpec
from rigl_compress.models.storage_size import layer_bytes
from rigl_compress.models.topology import connections
from rigl_compress.sparsity.sparsity_config import SparsityConfig

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "rigl_paper_costs.json").read_text())[
    "resnet50_flops_ratio"
]


def megabytes(counted: Counted) -> float:
    """Return the size with a bit-mask for every sparse layer; every layer has biases."""
    return sum(layer_bytes(row.weights, row.nonzeros, row.channels) for row in counted.report.layers) / 1e6


def resnet(distribution: str, sparsity: float, **settings: tuple[str, ...]) -> Counted:
    return sparse("resnet-50", SparsityConfig(distribution=distribution, sparsity=sparsity, **settings))  # type: ignore[arg-type]


def mobilenet(distribution: str, sparsity: float, *dense_layers: str, width: float = 1.0) -> Counted:
    config = SparsityConfig(distribution=distribution, sparsity=sparsity, dense=dense_layers)
    return sparse("mobilenet-v1", config, width)


# ResNet-50


def test_dense_resnet() -> None:
    counted = dense("resnet-50")
    assert f"{counted.report.dense / 1e9:.4f}" == "8.2023"
    assert counted.report.weights == 25_502_912
    assert f"{megabytes(counted):.3f}" == "102.122"
    assert len(counted.report.layers) == 54
    assert counted.report.layers[0].positions == 115**2


def test_dense_resnet_without_the_quirk() -> None:
    spec = ModelSpec("resnet-50")
    for convention, printed in (("micronet", "8.1895"), ("multiply-add", "8.1784")):
        report = count_flops(spec.build(), spec.example(), convention=convention)
        assert f"{report.dense / 1e9:.4f}" == printed


@pytest.mark.parametrize(("sparsity", "ratio"), [(0.8, 0.2254), (0.9, 0.1285), (0.95, 0.0801), (0.965, 0.0656)])
def test_uniform_resnet_keeps_its_first_layer(sparsity: float, ratio: float) -> None:
    found = resnet("uniform", sparsity).ratio
    assert round(found, 4) == ratio
    assert found == pytest.approx(GOLDEN["uniform_first_dense"][str(sparsity)], rel=1e-12)


@pytest.mark.parametrize(("sparsity", "ratio"), [(0.8, 0.4153), (0.9, 0.2431), (0.95, 0.1230), (0.965, 0.0865)])
def test_erk_resnet_shares_out_over_all_layers(sparsity: float, ratio: float) -> None:
    found = resnet("erk", sparsity).ratio
    assert round(found, 4) == ratio
    assert found == pytest.approx(GOLDEN["erk_all"][str(sparsity)], rel=1e-9)


@pytest.mark.parametrize(("sparsity", "ratio"), [(0.8, 0.4546), (0.9, 0.2593)])
def test_er_resnet(sparsity: float, ratio: float) -> None:
    assert round(resnet("er", sparsity).ratio, 4) == ratio


@pytest.mark.parametrize(
    ("counted", "size"),
    [
        (resnet("uniform", 0.8), "23.729"),
        (resnet("er", 0.8), "23.685"),  # the README's figure for uniform
        (resnet("erk", 0.8), "23.684"),
        (resnet("uniform", 0.9), "13.532"),
        (resnet("erk", 0.9), "13.499"),
        (resnet("erk", 0.99, dense=("first",)), "4.354"),
    ],
)
def test_sizes_of_resnet(counted: Counted, size: str) -> None:
    assert f"{megabytes(counted):.3f}" == size


@pytest.mark.parametrize(
    ("counted", "ratio"),
    [
        (resnet("uniform", 0.9, dense=()), 0.1012),
        (resnet("erk", 0.965, dense=("first",)), 0.1125),
        (resnet("erk", 0.99, dense=("first",)), 0.0548),
    ],
)
def test_resnet_with_the_first_layer_the_other_way(counted: Counted, ratio: float) -> None:
    assert round(counted.ratio, 4) == ratio


@pytest.mark.parametrize(("width", "ratio"), [(0.465, 0.2218), (0.4425, 0.2018), (0.34, 0.1209)])
def test_small_dense_resnet(width: float, ratio: float) -> None:
    assert round(dense("resnet-50", width).ratio, 4) == ratio


@pytest.mark.parametrize(("sparsity", "ratio"), [(0.8, 0.4049), (0.9, 0.2978)])
def test_dsr_resnet(sparsity: float, ratio: float) -> None:
    assert round(LAYERS["resnet-50"]["dsr"](sparsity).ratio, 4) == ratio


@pytest.mark.parametrize(("sparsity", "alive"), [(0.8, 5_100_630), (0.9, 2_550_353)])
def test_erk_resnet_in_whole_connections(sparsity: float, alive: int) -> None:
    rows = resnet("erk", sparsity).report.layers
    assert sum(connections(row.nonzeros / row.weights, row.weights) for row in rows) == alive


# MobileNet-v1


def test_dense_mobilenet() -> None:
    counted = dense("mobilenet-v1")
    assert f"{counted.report.dense / 1e6:.3f}" == "1141.544"
    assert f"{megabytes(counted):.3f}" == "16.864"


def test_the_sides_that_the_counter_sees() -> None:
    seen = {row.name: round(row.positions**0.5) for row in dense("mobilenet-v1").report.layers}
    strided = {name: side for name, side in seen.items() if name == "conv1" or side in (57, 29, 15, 8)}
    assert strided == {
        **{"conv1": 113, "blocks.1.depthwise": 57, "blocks.3.depthwise": 29},
        **{"blocks.5.depthwise": 15, "blocks.11.depthwise": 8},
    }


def test_a_depthwise_convolution_has_one_channel_to_the_counter() -> None:
    """With one bias and ReLU per channel it would be 1143.483 MFLOPs, with none at all 1141.522."""
    depthwise = [row for row in dense("mobilenet-v1").report.layers if row.name.endswith("depthwise")]
    assert {row.channels for row in depthwise} == {1}
    assert sum(row.extra for row in depthwise) == sum(row.positions for row in depthwise)


@pytest.mark.parametrize(
    ("counted", "mflops", "ratio", "size", "sparsity"),
    [
        # depth-wise layers dense; the notebook printed 439.152, 334.134 and 205.281 for ERK, rounding zeros up
        (mobilenet("erk", 0.75, DEPTHWISE), "599.144", 0.5249, "4.888", 0.742),
        (mobilenet("erk", 0.85, DEPTHWISE), "439.158", 0.3847, "3.224", 0.841),
        (mobilenet("erk", 0.9, DEPTHWISE), "334.142", 0.2927, "2.393", 0.890),
        (mobilenet("erk", 0.95, DEPTHWISE), "205.292", 0.1798, "1.560", 0.940),
        (mobilenet("uniform", 0.75, "first", DEPTHWISE), "330.769", 0.2898, "4.894", 0.742),
        (mobilenet("uniform", 0.85, "first", DEPTHWISE), "222.666", 0.1951, "3.229", 0.841),
        (mobilenet("uniform", 0.9, "first", DEPTHWISE), "168.614", 0.1477, "2.396", 0.890),
        (mobilenet("uniform", 0.95, "first", DEPTHWISE), "114.563", 0.1004, "1.563", 0.940),
        # depth-wise layers sparse, only the first layer dense
        (mobilenet("erk", 0.75, "first"), "588.355", 0.5154, "4.757", 0.750),
        (mobilenet("erk", 0.9, "first"), "312.970", 0.2742, "2.235", 0.900),
        (mobilenet("uniform", 0.75, "first"), "304.290", 0.2666, "4.766", 0.750),
        (mobilenet("uniform", 0.9, "first"), "136.840", 0.1199, "2.241", 0.900),
        # Small-Dense
        (dense("mobilenet-v1", 0.47), "266.539", 0.2335, "4.789", 0.0),
        (dense("mobilenet-v1", 0.353), "154.770", 0.1356, "3.076", 0.0),
        (dense("mobilenet-v1", 0.285), "103.825", 0.0910, "2.236", 0.0),
        # Big-Sparse
        (mobilenet("erk", 0.75, "first", width=1.98), "2180.140", 1.9098, "16.723", 0.742),
        (
            LAYERS["mobilenet-v1"]["big uniform, depth-wise sparse, readout 80 %"](0.75),
            "1122.572",
            0.9834,
            "15.863",
            0.757,
        ),
    ],
)
def test_mobilenet_as_in_the_notebook(counted: Counted, mflops: str, ratio: float, size: str, sparsity: float) -> None:
    assert f"{counted.report.sparse / 1e6:.3f}" == mflops
    assert round(counted.ratio, 4) == ratio
    assert f"{megabytes(counted):.3f}" == size
    assert round(counted.sparsity, 3) == sparsity
