"""Why sparse training does not reach a weight."""

from collections.abc import Collection

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from rigl_compress.models.sparse_parameters import left_dense

_EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def unreached_reasons(model: nn.Module) -> dict[str, str]:
    """Return why each weight that always stays dense does so, by name.

    >>> unreached_reasons(nn.Sequential(nn.Embedding(10, 4), nn.Bilinear(4, 4, 3), nn.Linear(3, 2)))
    {'0.weight': 'embedding', '1.weight': 'no sparse support for Bilinear'}
    """
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, _EMBEDDINGS)}
    return {name: _reason(model, name, embedded) for name in left_dense(model)}


def _reason(model: nn.Module, name: str, embedded: Collection[int]) -> str:
    owner = model.get_submodule(name.rpartition(".")[0])
    if isinstance(owner, _EMBEDDINGS):
        return "embedding"
    if id(model.get_parameter(name)) in embedded:
        return "tied to an embedding"
    if isinstance(owner, ParametrizationList):
        return "parametrized"
    kind = type(owner).__name__
    standard = type(owner).__module__.startswith("torch.nn.")
    return f"no sparse support for {kind}" if standard else f"a parameter of {kind} itself, not of a layer"
