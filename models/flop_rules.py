"""The table of FLOP rules: what each kind of product multiplies, from the shapes of its operands; no torch, no ONNX.

Layers of torch (`models/flop_counter.py`) and operators of ONNX (`exporters/onnx_products.py`) are both mapped onto it.
Products with padding count, as in all published tables.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

Shape = Sequence[int]


@dataclass(frozen=True)
class Product:
    """The multiply-adds of a product: each of its `elements` uses `fan` weights.

    The elements are those of the output, with their fan-in; of a transposed convolution those of the input, with their
    fan-out.
    """

    elements: int
    fan: int

    @property
    def multiply_adds(self) -> int:
        """Pairs of a multiplication and an addition."""
        return self.elements * self.fan

    def positions(self, channels: int) -> int:
        """Return how often each weight is used, if the elements have so many channels.

        >>> FLOP_RULES["conv"]((1, 3, 32, 32), (8, 3, 3, 3), (1, 8, 30, 30)).positions(channels=8)
        900
        """
        return self.elements // channels


FlopRule = Callable[[Shape, Shape, Shape], Product]  # shapes of the input, the weight and the output


def filter_per_output(data: Shape, weight: Shape, output: Shape) -> Product:
    """Each output element is a sum over one filter of the weight [out, in / groups, …].

    >>> filter_per_output((5, 784), (300, 784), (5, 300)).multiply_adds == 5 * 300 * 784
    True
    """
    del data
    return Product(prod(output), prod(weight[1:]))


def filter_per_input(data: Shape, weight: Shape, output: Shape) -> Product:
    """Each input element is multiplied with one filter of the weight [in, out / groups, …], whatever the stride."""
    del output
    return Product(prod(data), prod(weight[1:]))


def inner_length(data: Shape, weight: Shape, output: Shape) -> Product:
    """Each output element is a sum over the last axis of the left operand, of weights or activations alike.

    >>> inner_length((2, 7, 5), (5, 3), (2, 7, 3)).multiply_adds == 2 * 7 * 5 * 3
    True
    """
    del weight
    return Product(prod(output), data[-1])


def attention_products(query: Shape, key: Shape, output: Shape) -> int:
    """Return the multiply-adds of q·kᵀ and of its product with the values, masked positions included.

    >>> attention_products((2, 7, 5), (2, 9, 5), (2, 7, 3)) == 2 * 7 * 9 * 5 + 2 * 7 * 9 * 3
    True
    """
    return prod(output[:-1]) * key[-2] * (query[-1] + output[-1])


def every_step(data: Shape, weight: Shape, output: Shape) -> Product:
    """Each weight […, gates · hidden, width] is used at every step of every sequence of the data [steps …, features].

    >>> every_step((11, 2, 5), (3 * 7, 5), (11, 2, 7)).multiply_adds == 11 * 2 * 3 * 7 * 5
    True
    """
    del output
    return Product(prod(data[:-1]) * prod(weight[:-1]), weight[-1])


def lookup(data: Shape, weight: Shape, output: Shape) -> Product:
    """Nothing is multiplied: rows of the weight are copied."""
    del data, output
    return Product(0, weight[-1])


FLOP_RULES: dict[str, FlopRule] = {
    "linear": filter_per_output,
    "conv": filter_per_output,
    "transposed conv": filter_per_input,
    "matmul": inner_length,
    "recurrent": every_step,
    "embedding": lookup,
}


def einsum(equation: str) -> FlopRule:
    """Return the rule of an Einstein sum of two operands: one multiplication for each combination of all indices.

    >>> einsum("...ij, jk -> ...ik")((2, 7, 5), (5, 3), (2, 7, 3)).multiply_adds == 2 * 7 * 5 * 3
    True
    """

    def rule(data: Shape, weight: Shape, output: Shape) -> Product:
        del output
        sizes: dict[str, int] = {}
        for term, shape in zip(_terms(equation), (data, weight), strict=True):
            for label, size in zip(_labels(term, len(shape)), shape, strict=True):
                sizes[label] = max(size, sizes.get(label, 1))  # an axis of length 1 is broadcast
        return Product(prod(sizes.values()), 1)

    return rule


def _terms(equation: str) -> list[str]:
    """Return the terms of the operands in an equation.

    >>> _terms("...ij, jk -> ...ik")
    ['...ij', 'jk']
    """
    return equation.replace(" ", "").partition("->")[0].split(",")


def _labels(term: str, rank: int) -> list[str]:
    """Return a label for each axis of an operand; those of an ellipsis are numbered from the last.

    >>> _labels("...ij", 4)
    ['...2', '...1', 'i', 'j']
    """
    before, dots, after = term.partition("...")
    hidden = rank - len(before) - len(after) if dots else 0
    return [*before, *(f"...{hidden - index}" for index in range(hidden)), *after]
