"""The table of the paper's Appendix B, as printed: structured pruning of a LeNet-300-100 on MNIST."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """A row as printed. `found_gflops`: training the pruned architecture from scratch (there in parentheses).

    `best` and `final` are errors in per cent; for the methods that it quotes the paper has only the best.
    """

    architecture: str
    sparsity: float
    gflops: float
    found_gflops: float | None
    kflops: float
    bytes: int
    best: float
    final: float | None


PRINTED = {
    "SBP": Printed("245-160-55", 0.0, 13521.6, 2554.8, 97.1, 195_100, 1.6, None),
    "L0": Printed("266-88-33", 0.0, 13521.6, 1356.4, 53.3, 107_092, 1.6, None),
    "VIB": Printed("97-71-33", 0.0, 13521.6, 523.0, 19.1, 38_696, 1.6, None),
    "RigL": Printed("408-100-69", 0.870, 482.0, None, 12.6, 31_914, 1.44, 1.48),
    "RigL+": Printed("375-62-51", 0.886, 206.3, None, 6.2, 16_113, 1.57, 1.69),
}
