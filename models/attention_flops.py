"""What `nn.MultiheadAttention` multiplies: it computes with its projections itself, so hooks on them see nothing."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from rigl_compress.models.flop_rules import attention_products
from rigl_compress.models.layer_flops import LayerUse
from rigl_compress.models.sparse_parameters import qualified_name

KIND = "attention"
_SOURCES = ("query", "key", "value")
_PARTS = ("q", "k", "v")


def attention_uses(
    path: str, module: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: Mapping[int, str]
) -> Iterator[LayerUse]:
    """Yield the projections of queries, keys and values, both products of activations, and the output projection."""
    given = dict(zip(_SOURCES, args, strict=False)) | {key: kwargs[key] for key in _SOURCES if key in kwargs}
    sources: list[Tensor] = [given[source] for source in _SOURCES]
    for part, source in zip(_PARTS, sources, strict=True):
        weight, parameter = _projection(path, module, part, names)
        yield _use(qualified_name(path, part), parameter, weight, source)
    yield LayerUse(path or type(module).__name__, KIND, "", 0, 0, 1, products=_products(module, sources))
    out = module.out_proj.weight
    label = qualified_name(path, "out_proj")
    yield _use(label, names.get(id(out), f"{label}.weight"), out, sources[0], depends=True)


def _projection(path: str, module: nn.MultiheadAttention, part: str, names: Mapping[int, str]) -> tuple[Tensor, str]:
    """Return the weight of queries, keys or values, and its name as a layer: packed ones are rows of one matrix."""
    whole = module.in_proj_weight
    if whole is None:
        weight: Tensor = getattr(module, f"{part}_proj_weight")
        return weight, names.get(id(weight), qualified_name(path, f"{part}_proj_weight"))
    rows = whole.chunk(len(_PARTS))[_PARTS.index(part)]
    return rows, f"{names.get(id(whole), qualified_name(path, 'in_proj_weight'))}.{part}"


def _use(name: str, parameter: str, weight: Tensor, source: Tensor, depends: bool = False) -> LayerUse:
    positions = source.numel() // source.shape[-1]
    return LayerUse(
        name=name,
        kind="linear",
        parameter=parameter,
        weights=weight.numel(),
        channels=weight.shape[0],
        positions=positions,
        input_gradient=depends or source.requires_grad,
    )


def _products(module: nn.MultiheadAttention, sources: list[Tensor]) -> int:
    query, key, _ = sources
    batched = query.dim() == 3
    steps = key.shape[1 if batched and module.batch_first else 0]
    steps += (module.bias_k is not None) + module.add_zero_attn
    queries, width = query.numel() // query.shape[-1], module.num_heads * module.head_dim
    return attention_products((queries, width), (steps, width), (queries, width))
