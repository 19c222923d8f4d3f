"""The paper's FLOPs, figure by figure: as printed, as computed by its own convention, and why they differ."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rigl_compress.experiments.published_flops import imagenet_tables as tables
from rigl_compress.experiments.published_flops.authors_counter import dense
from rigl_compress.experiments.published_flops.sparse_networks import LAYERS
from rigl_compress.sparsity.methods import METHODS
from rigl_compress.sparsity.schedules import pruned_density
from rigl_compress.sparsity.training_flop_conventions import Forward, TrainingRun
from rigl_compress.sparsity.training_flops import Cost, flops_per_sample, lottery_rigl

STEPS, BATCH, INTERVAL = 32_000, 4096, 100  # ImageNet training (paper, §4.1)
PRUNING = (10_000, 25_000)  # first and last step of gradual pruning, from the authors' notebook


@dataclass(frozen=True)
class Claim:
    """What a figure refers to: a network, a method, the distribution of its connections, the length of training."""

    network: str
    method: str
    layers: str
    sparsity: float
    length: float

    def test(self) -> float:
        """Return inference FLOPs relative to the dense network."""
        return _inference(self.network, self.layers, self.sparsity)

    def train(self) -> float:
        """Return training FLOPs relative to the usual training of the dense network."""
        run = TrainingRun(STEPS * BATCH, STEPS, INTERVAL, density=self._density)
        return self.length * flops_per_sample(_cost(self.method), Forward(1.0, self.test()), run, "appendix-h") / 3

    def _density(self, step: int) -> float:
        begin, end = PRUNING
        return pruned_density(min(1.0, max(0.0, (step - begin) / (end - begin))), 1 - self.sparsity)


def _cost(method: str) -> Cost:
    """Return the training cost of a method of the tables; starting again with RigL is one of the paper alone."""
    return lottery_rigl if method == "lottery-rigl" else METHODS[method].counted_cost


@cache
def _inference(network: str, layers: str, sparsity: float) -> float:
    return LAYERS[network][layers](sparsity).ratio


@dataclass(frozen=True)
class Note:
    """Why a printed figure differs from the paper's own convention, and the claim that reproduces it."""

    text: str
    actual: Callable[[Claim], Claim]


def _distributed(layers: str) -> Callable[[Claim], Claim]:
    return lambda claim: replace(claim, layers=layers)


NOTES = {
    "a": Note("counts the first layer as sparse; the text keeps it dense", _distributed("uniform, first layer sparse")),
    "b": Note("needs a width of 0.4425; the authors' notebook has 0.465", _distributed("smaller dense")),
    "c": Note(
        "is the cost at S = 0.8 (first columns) or 0.9 (second ones)",
        lambda claim: replace(claim, sparsity={0.95: 0.8, 0.965: 0.9}[claim.sparsity]),
    ),
    "d": Note("counts the first layer as dense; ERK assigns it a density", _distributed("erk, first layer dense")),
    "e": Note("is the figure of starting again with RigL", lambda claim: replace(claim, method="lottery-rigl")),
    "f": Note(
        "counts depth-wise convolutions as sparse; the text keeps them dense",
        lambda claim: replace(claim, layers=f"{claim.layers}, depth-wise sparse"),
    ),
    "g": Note(
        "counts depth-wise convolutions as sparse and the readout at 80 %; the text keeps the former dense",
        _distributed("big uniform, depth-wise sparse, readout 80 %"),
    ),
}


@dataclass(frozen=True)
class Figure:
    """One printed figure. `computed` follows the paper's own convention, `elsewhere` the note."""

    table: str
    method: str
    sparsity: float
    column: str  # "train" or "test"
    printed: str
    computed: float
    note: str = ""
    elsewhere: float | None = None

    @property
    def agrees(self) -> bool:
        """Whether the paper's own convention reproduces the printed figure."""
        return as_printed(self.computed, self.printed) == self.printed

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        reason = NOTES[self.note].text if self.note else None
        return {**vars(self), "note": reason, "agrees": self.agrees}


def as_printed(value: float, like: str) -> str:
    """Format a value as the paper formats such figures.

    >>> as_printed(0.22536, "0.23x"), as_printed(8_202_340_776, "8.2e9")
    ('0.23x', '8.2e9')
    """
    return f"{value:.2f}x" if like.endswith("x") else f"{value:.1e}".replace("e+0", "e").replace("e+", "e")


@dataclass(frozen=True)
class Table:
    """A table of the paper: its title, the network, the sparsities of its columns, and its text."""

    title: str
    network: str
    sparsities: tuple[float, ...]
    text: str


TABLES = (
    Table("Figure 2 (left): ResNet-50", "resnet-50", (0.8, 0.9), tables.RESNET_50),
    Table("Appendix L: ResNet-50 at high sparsity", "resnet-50", (0.95, 0.965), tables.RESNET_50_HIGH),
    Table("Appendix E: lottery tickets, ResNet-50", "resnet-50", (0.8,), tables.LOTTERY),
    Table("Figure 3 (right): MobileNet-v1", "mobilenet-v1", (0.75, 0.9), tables.MOBILENET),
)


def all_figures() -> list[Figure]:
    """Return every printed figure of the ImageNet tables."""
    return [figure for table in TABLES for line in table.text.strip().splitlines() for figure in _line(table, line)]


def comparison_rows(table: Table, figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    """Return the lines of a table: method, sparsity, and for each column the printed and the computed figure."""
    rows: dict[tuple[str, float], dict[str, Figure]] = {}
    for figure in figures:
        if figure.table == table.title:
            rows.setdefault((figure.method, figure.sparsity), {})[figure.column] = figure
    return [
        (method, f"{sparsity:g}", *(cell for column in ("train", "test") for cell in _cells(columns.get(column))))
        for (method, sparsity), columns in sorted(rows.items(), key=lambda row: row[0][1])
    ]


def _cells(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    computed = f"{figure.computed:.4f}" if figure.printed.endswith("x") else f"{figure.computed:.4g}"
    return f"{figure.printed} {figure.note or ' '}", computed


def _line(table: Table, line: str) -> Iterator[Figure]:
    label, method, layers, length, *cells = (cell.strip() for cell in line.split("|"))
    for place, cell in enumerate(cells):
        if cell:
            claim = Claim(table.network, method, layers, table.sparsities[place // 2], float(length))
            yield _figure(table.title, label, claim, ("train", "test")[place % 2], cell)


def _figure(title: str, label: str, claim: Claim, column: str, cell: str) -> Figure:
    printed, _, note = cell.partition(" ")
    if not printed.endswith("x"):  # the cost of the dense network
        flops = dense(claim.network).report.dense
        return Figure(title, label, 0.0, column, printed, flops if column == "test" else 3 * flops * STEPS * BATCH)
    elsewhere = _share(NOTES[note].actual(claim), column) if note else None
    return Figure(title, label, claim.sparsity, column, printed, _share(claim, column), note, elsewhere)


def _share(claim: Claim, column: str) -> float:
    return claim.train() if column == "train" else claim.test()
