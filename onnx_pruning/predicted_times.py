"""What the cost model predicts for each layer, before and after pruning."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import onnx
from numpy.typing import NDArray

from rigl_compress.onnx_pruning.layer_costs import time_costs
from rigl_compress.onnx_pruning.one_shot_pruning import PrunedWeight
from rigl_compress.onnx_pruning.prunable_layers import PrunableLayer
from rigl_compress.runtime.kernel_library import unavailable_reason

Array = NDArray[Any]


def with_predictions(
    pruned: Sequence[PrunedWeight], model: onnx.ModelProto, layers: Sequence[PrunableLayer], sample: dict[str, Array]
) -> list[PrunedWeight]:
    """Return the layers with their predicted seconds on a sample, before and as pruned; as they are without kernels."""
    if unavailable_reason():
        return list(pruned)
    known = [each for each in layers if not each.depthwise]
    before = {each.name: each.most / each.size for each in known}
    costs = time_costs(model, known, sample)

    def predicted(each: PrunedWeight) -> tuple[float, float] | None:
        cost = costs.get(each.name)
        if cost is None or not cost(1.0):  # 0 for layers that the cost model does not know
            return None
        return 1e-9 * cost(before[each.name]), 1e-9 * cost(each.count / each.size)

    return [replace(each, predicted=predicted(each)) for each in pruned]
