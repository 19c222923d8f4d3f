"""Multi-head attention with fewer heads of the same size, which `torch.nn.MultiheadAttention` cannot represent."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

_PACKED = ("in_proj_weight", "in_proj_bias")
_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class ResizedAttention(nn.MultiheadAttention):
    """`nn.MultiheadAttention` that has lost some heads: the same call, parameter names and outputs.

    Attention weights, if requested, are those of the remaining heads.
    """

    heads: tuple[int, ...]  # the heads that are left, of those that masks are made for
    all_heads: int

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs, and the weights or None, as `nn.MultiheadAttention` does."""
        if query.is_nested:
            return self._nested(query), None
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        inputs = [self._batch_first(each) for each in (query, key, value)]
        padding = key_padding_mask if key_padding_mask is None or query.dim() == 3 else key_padding_mask[None]
        outputs, weights = self._attend(inputs, self._mask(inputs[0], padding, attn_mask), need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(dim=1)
        if query.dim() == 2:
            return outputs[0], None if weights is None else weights[0]
        return outputs if self.batch_first else outputs.transpose(0, 1), weights

    def _batch_first(self, x: Tensor) -> Tensor:
        """[L, E], [N, L, E] or [L, N, E] → [N, L, E]."""
        if x.dim() == 2:
            return x[None]
        return x if self.batch_first else x.transpose(0, 1)

    def _attend(self, inputs: list[Tensor], mask: Tensor | None, weigh: bool) -> tuple[Tensor, Tensor | None]:
        queries, keys, values = (self._by_head(x) for x in self._projected(inputs))
        dropout = self.dropout if self.training else 0.0
        if not weigh:
            heads = F.scaled_dot_product_attention(queries, keys, values, mask, dropout)
            return self._joined(heads), None
        scores = queries @ keys.transpose(-2, -1) * self.head_dim**-0.5
        weights = F.dropout(F.softmax(scores if mask is None else scores + mask, dim=-1), dropout, self.training)
        return self._joined(weights @ values), weights

    def _projected(self, inputs: list[Tensor]) -> list[Tensor]:
        packed = self.in_proj_weight is not None
        weights = self.in_proj_weight.chunk(3) if packed else [getattr(self, name) for name in _SEPARATE]
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(x, weight, bias) for x, weight, bias in zip(inputs, weights, biases, strict=True)]

    def _by_head(self, x: Tensor) -> Tensor:
        """[N, L, heads · size] → [N, heads, L, size]."""
        return x.reshape(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _joined(self, heads: Tensor) -> Tensor:
        return self.out_proj(heads.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _mask(self, query: Tensor, padding: Tensor | None, attention: Tensor | None) -> Tensor | None:
        """Return both masks as one that is added to the scores [N, heads, L, S]."""
        parts = []
        if padding is not None:
            parts.append(_added(padding, query.dtype)[:, None, None])
        if attention is not None and attention.dim() == 3:  # a mask for each sample and each of the original heads
            attention = attention.reshape(-1, self.all_heads, *attention.shape[1:])[:, list(self.heads)]
        if attention is not None:
            parts.append(_added(attention, query.dtype))
        return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]

    def _nested(self, x: Tensor) -> Tensor:
        """Self-attention of sequences of different lengths, as `nn.TransformerEncoder` packs padded ones."""
        lengths = [len(each) for each in x.unbind()]
        padded = x.to_padded_tensor(0.0)
        padding = torch.arange(padded.shape[1])[None] >= torch.tensor(lengths)[:, None]
        outputs, _ = self.forward(padded, padded, padded, padding.to(x.device), need_weights=False)
        return torch.nested.as_nested_tensor([each[:length] for each, length in zip(outputs, lengths, strict=True)])


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask as numbers to add: -inf where a boolean one excludes."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else mask


def head_rows(heads: Tensor, size: int) -> Tensor:
    """Return the rows of some heads.

    >>> head_rows(torch.tensor([0, 2]), 3).tolist()
    [0, 1, 2, 6, 7, 8]
    """
    return (heads[:, None] * size + torch.arange(size, device="cpu")).flatten()


def with_fewer_heads(attention: Any, heads: Tensor) -> None:
    """Cut an attention layer to some of its heads, in place."""
    rows = head_rows(heads, attention.head_dim)
    width = attention.num_heads * attention.head_dim
    stacked = torch.cat([rows + part * width for part in range(3)])
    for name in _PACKED:
        _keep(attention, name, stacked)
    for name in _SEPARATE:
        _keep(attention, name, rows)
    _keep(attention.out_proj, "weight", rows, dim=1)
    attention.out_proj.in_features = len(rows)
    before = getattr(attention, "heads", tuple(range(attention.num_heads)))
    attention.all_heads = getattr(attention, "all_heads", attention.num_heads)
    attention.heads = tuple(before[head] for head in heads.tolist())
    attention.num_heads = len(heads)
    attention._qkv_same_embed_dim = False  # torch's fused encoder layer would assume as many heads as before
    attention.__class__ = ResizedAttention


def _keep(module: nn.Module, name: str, rows: Tensor, dim: int = 0) -> None:
    tensor = getattr(module, name)
    if tensor is not None:
        small = tensor.detach().index_select(dim, rows.to(tensor.device)).clone()
        setattr(module, name, nn.Parameter(small, tensor.requires_grad))
