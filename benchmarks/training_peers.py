"""Libraries that train sparse layers on CPUs, for the columns of sparse_training.py: their layers in our networks.

They are optional: `pip install sparselab sparseprop scipy`, the latter two for SparseProp, which is compiled on
installation. Both are timed with the connections that they start with: SparseProp cannot change them.
"""

from collections.abc import Callable
from importlib.util import find_spec

from torch import nn

Layer = Callable[[nn.Module], nn.Module | None]  # None: the library has no such layer


def _sparselab_layer(layer: nn.Module) -> nn.Module | None:
    from sparselab import SparseLinear  # type: ignore[import-not-found]

    if not isinstance(layer, nn.Linear):
        return None
    sparsity = float((layer.weight == 0).float().mean())
    size = (layer.in_features, layer.out_features)
    return SparseLinear(*size, bias=layer.bias is not None, sparsity=sparsity)  # type: ignore[no-any-return]


def _sparseprop_layer(layer: nn.Module) -> nn.Module | None:
    from sparseprop.modules import SparseConv2d, SparseLinear  # type: ignore[import-not-found]

    if isinstance(layer, nn.Linear):
        return SparseLinear.from_dense(layer)  # type: ignore[no-any-return]
    if isinstance(layer, nn.Conv2d) and layer.stride == (1, 1):
        return SparseConv2d.from_dense(layer)  # type: ignore[no-any-return]
    return None


LAYERS: dict[str, tuple[Layer, tuple[str, ...]]] = {
    "sparselab": (_sparselab_layer, ("sparselab",)),
    "sparseprop": (_sparseprop_layer, ("sparseprop", "scipy")),
}


def installed() -> list[str]:
    """Return the libraries that are here."""
    return [name for name, (_, packages) in LAYERS.items() if all(map(find_spec, packages))]


def with_layers_of(library: str, model: nn.Module) -> bool:
    """Replace the layers of a masked sequence in place; False: the library has no layer for one of them."""
    for name, child in model.named_children():
        weight = getattr(child, "weight", None)
        if weight is None or bool((weight != 0).all()):
            continue
        layer = LAYERS[library][0](child)
        if layer is None:
            return False
        setattr(model, name, layer)
    return isinstance(model, nn.Sequential)
