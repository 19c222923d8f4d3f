"""The sparse networks of the paper's tables: by the rules of its text, and as its other figures imply."""

from collections.abc import Callable, Mapping
from typing import Any

from rigl_compress.experiments.published_flops.authors_counter import Counted, dense, sparse
from rigl_compress.sparsity.sparsity_config import SparsityConfig

DEPTHWISE = "*.depthwise"
BIG = 1.98  # width of Big-Sparse, which at 75 % sparsity is as large as the dense MobileNet

# Sparsities by layer, in the order of ResNet-50: the authors of RigL read them off a figure of the DSR paper.
DSR = {
    0.8: (
        *(0, 0, 0.15, 0.5, 0.425, 0.575, 0.55, 0.425, 0.32, 0.44, 0.15),
        *(0, 0.15, 0.55, 0.6, 0.8, 0.65, 0.75, 0.65, 0.65, 0.65, 0.55, 0.65, 0.7),
        *(0, 0.35, 0.65, 0.85, 0.9, 0.8, 0.85, 0.85, 0.8, 0.85, 0.85, 0.85, 0.85, 0.8, 0.8, 0.9, 0.75, 0.8, 0.85),
        *(0, 0.65, 0.85, 0.95, 0.85, 0.8, 0.9, 0.65, 0.9, 0.8, 0.8),
    ),
    0.9: (
        *(0, 0, 0.4, 0.6, 0.65, 0.65, 0.6, 0.6, 0.5, 0.6, 0.45),
        *(0, 0.4, 0.7, 0.8, 0.9, 0.8, 0.85, 0.8, 0.75, 0.8, 0.7, 0.8, 0.8),
        *(0, 0.6, 0.8, 0.95, 0.95, 0.9, 0.95, 0.9, 0.9, 0.95, 0.9, 0.9, 0.95, 0.9, 0.9, 0.95, 0.85, 0.85, 0.9),
        *(0, 0.8, 0.95, 0.95, 0.9, 0.9, 0.95, 0.8, 0.95, 0.9, 0.9),
    ),
}


def _distributed(network: str, width: float = 1.0, **settings: Any) -> Callable[[float], Counted]:
    return lambda sparsity: sparse(network, SparsityConfig(sparsity=sparsity, **settings), width)


def _dsr(sparsity: float) -> Counted:
    layers = dense("resnet-50").report.layers
    sparsities = zip(layers, DSR[sparsity], strict=True)
    return Counted("resnet-50", {layer.parameter: 1 - removed for layer, removed in sparsities})


def _narrow(network: str, widths: Mapping[float, float]) -> Callable[[float], Counted]:
    return lambda sparsity: dense(network, widths[sparsity])


# network → distribution → sparsity → counted network
LAYERS: dict[str, dict[str, Callable[[float], Counted]]] = {
    "resnet-50": {
        "dense": lambda _: dense("resnet-50"),
        "uniform": _distributed("resnet-50", distribution="uniform"),  # the first layer is dense
        "erk": _distributed("resnet-50", distribution="erk"),  # all layers
        "dsr": _dsr,
        "small-dense": _narrow("resnet-50", {0.8: 0.465, 0.9: 0.34}),  # the widths of the authors' notebook
        "uniform, first layer sparse": _distributed("resnet-50", distribution="uniform", dense=()),
        "erk, first layer dense": _distributed("resnet-50", distribution="erk", dense=("first",)),
        "smaller dense": _narrow("resnet-50", {0.8: 0.4425}),
    },
    "mobilenet-v1": {
        "dense": lambda _: dense("mobilenet-v1"),
        "uniform": _distributed("mobilenet-v1", distribution="uniform", dense=("first", DEPTHWISE)),
        "erk": _distributed("mobilenet-v1", distribution="erk", dense=(DEPTHWISE,)),  # which leaves the first dense
        "small-dense": _narrow("mobilenet-v1", {0.75: 0.47, 0.9: 0.285}),
        "big uniform": _distributed("mobilenet-v1", BIG, distribution="uniform", dense=("first", DEPTHWISE)),
        "big erk": _distributed("mobilenet-v1", BIG, distribution="erk", dense=(DEPTHWISE,)),
        "uniform, depth-wise sparse": _distributed("mobilenet-v1", distribution="uniform", dense=("first",)),
        "erk, depth-wise sparse": _distributed("mobilenet-v1", distribution="erk", dense=("first",)),
        "big erk, depth-wise sparse": _distributed("mobilenet-v1", BIG, distribution="erk", dense=("first",)),
        "big uniform, depth-wise sparse, readout 80 %": _distributed(
            "mobilenet-v1", BIG, distribution="uniform", dense=("first",), layers={"readout": 0.8}
        ),
    },
}
