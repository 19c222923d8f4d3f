"""Padding of convolutions, given as numbers or by `auto_pad`."""

from collections.abc import Mapping
from typing import Any

from rigl_compress.runtime.onnx_graph import Shape


def padding(settings: Mapping[str, Any], window: Mapping[str, list[int]], shape: Shape | None) -> list[int] | None:
    """Return the padding before all axes, then after; None if it depends on lengths that are not known.

    >>> window = {"kernel_shape": [3, 2], "strides": [1, 1], "dilations": [1, 1]}
    >>> padding({"auto_pad": b"SAME_UPPER"}, window, None), padding({"auto_pad": b"SAME_LOWER"}, window, None)
    ([1, 0, 1, 1], [1, 1, 1, 0])
    """
    kind, axes = settings.get("auto_pad", b"NOTSET"), len(window["kernel_shape"])
    if kind == b"NOTSET":
        return list(settings.get("pads", [0] * 2 * axes))
    if kind == b"VALID":
        return [0] * 2 * axes
    lengths = (shape or ("",) * (axes + 2))[2:]
    # ONNX Runtime rejects dilated filters here.
    if kind not in (b"SAME_UPPER", b"SAME_LOWER") or set(window["dilations"]) != {1} or len(lengths) != axes:
        return None
    totals = [_total(*each) for each in zip(window["kernel_shape"], window["strides"], lengths, strict=False)]
    if len(totals) != axes or None in totals:
        return None
    less = [total // 2 for total in totals if total is not None]
    more = [total - total // 2 for total in totals if total is not None]
    return [*less, *more] if kind == b"SAME_UPPER" else [*more, *less]


def _total(kernel: int, stride: int, length: int | str) -> int | None:
    """Return the padding of an axis with which the output is as long as the input, divided by the stride."""
    if stride == 1:
        return kernel - 1
    if not isinstance(length, int) or length < 1 or stride < 1:
        return None
    return int(max((-(-length // stride) - 1) * stride + kernel - length, 0))
