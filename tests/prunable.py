"""Small networks of every kind that pruning must get through: `NETWORKS` by name, with an example input each."""

import prunable_channels
import prunable_graphs
import prunable_plain
import prunable_recurrent
import prunable_traps
from prunable_registry import NETWORKS, Case, Code, Example, conv

FAMILIES = (
    prunable_plain,
    prunable_graphs,
    prunable_channels,
    prunable_recurrent,
    prunable_traps,
)  # importing them registers their networks

__all__ = ["FAMILIES", "NETWORKS", "Case", "Code", "Example", "conv"]
