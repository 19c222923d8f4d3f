"""Which layers of a library's transformer stay dense by default: its embeddings and its head, as in those of ours."""

from torch import nn

from rigl_compress.models.sparse_parameters import sparse_parameters

_EMBEDDINGS = ("embeddings", "patch_embed", "conv_proj")  # in the names of transformers, timm and torchvision


def keep_ends_dense(model: nn.Module, body: nn.Module | None = None) -> None:
    """Let embeddings and head stay dense unless `sparsity.dense` says otherwise; the head is what `body` has not.

    Without a `body` the head is the last layer and what is named so, and only a network with embeddings is changed.
    """
    layers = [name.rpartition(".")[0] for name in sparse_parameters(model)]
    ends = [name for name in layers if any(word in name for word in _EMBEDDINGS) and ".backbone." not in name]
    if body is not None:
        inside = {id(each) for each in body.modules()}
        ends += [name for name in layers if id(model.get_submodule(name)) not in inside]
    elif ends:
        ends += [name for name in layers if name.startswith("head") or name == layers[-1]]
    if ends and len({*ends}) < len(layers):
        model.dense_layers = tuple(f"*{name}" for name in dict.fromkeys(ends))  # type: ignore[assignment]
