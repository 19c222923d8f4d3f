"""The rule of layer norms, which read all channels: their inputs and outputs are kept whole."""

from torch import fx

from rigl_compress.pruning.analysis import Analysis, Rule
from rigl_compress.pruning.channel_facts import Fact
from rigl_compress.pruning.weighted_layer_rules import pinned


def _norm(node: fx.Node, analysis: Analysis) -> Fact:
    analysis.opaque.add(node)
    source = node.args[0]
    if analysis.tracked(source):
        analysis.notes.append(f"{node.target}: {type(analysis.module(node)).__name__} reads all channels")
        analysis.keep(source)  # type: ignore[arg-type]
    return pinned(node, analysis, -1, node.meta["shape"][-1])


def _nothing(node: fx.Node, analysis: Analysis) -> None:
    del node, analysis  # it is opaque: all of its inputs are needed


NORM = Rule(_norm, _nothing)
