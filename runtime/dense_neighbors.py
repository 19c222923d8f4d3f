"""Dense layers next to sparse ones: on kernels of this package they save ONNX Runtime conversions of the layout.

ONNX Runtime stores the images of dense convolutions in blocks of channels, the sparse kernels use the plain layout.
Only depthwise layers adjacent to a sparse layer are replaced.
"""

from collections.abc import Sequence

from rigl_compress.runtime.layer_matching import DEPTHWISE, Layer


def dense_neighbors(found: Sequence[Layer], sparse: Sequence[Layer]) -> list[Layer]:
    """Return the depthwise layers that read from or write to a sparse layer."""
    written = {layer.output for layer in sparse}
    read = {name for layer in sparse for name in (layer.x, layer.residual)}
    near = (layer for layer in found if layer.x in written or layer.output in read)
    return [layer for layer in near if layer.operator == DEPTHWISE]
