"""The tables of docs/results/sparsify.md, from the rows of sparsify_curves.py and sparsify_budgets.py."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

Row = dict[str, Any]
SHARES = (0.4, 0.5, 0.6, 0.7, 0.8)
TIMES = ("predicted", "measured")


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a file; none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def error(row: Row) -> float:
    """Return the squared error of the outputs, relative to them."""
    return float(10 ** (-row["snr"] / 10))


def curves(rows: list[Row]) -> Iterator[str]:
    """Yield the errors of both methods, and their ratio, by sparsity."""
    yield "| network | calibration samples | method | " + " | ".join(f"{share:.0%}" for share in SHARES) + " |"
    yield "|---" * (3 + len(SHARES)) + "|"
    for network, samples in dict.fromkeys((each["network"], each.get("calibration")) for each in rows):
        own = [each for each in rows if (each["network"], each.get("calibration")) == (network, samples)]
        found = {(each["method"], each["sparsity"]): error(each) for each in own}
        for method in ("magnitude", "obs"):
            cells = (f"{found[method, share]:.3f}" if (method, share) in found else "–" for share in SHARES)
            yield f"| {network} | {samples or ''} | {method} | {' | '.join(cells)} |"
        both = [share for share in SHARES if ("obs", share) in found and ("magnitude", share) in found]
        if both:
            ratios = {share: found["obs", share] / found["magnitude", share] for share in both}
            cells = (f"{ratios[share]:.2f}" if share in ratios else "–" for share in SHARES)
            yield f"| {network} | {samples or ''} | obs / magnitude | {' | '.join(cells)} |"


def at_half(rows: list[Row]) -> Iterator[str]:
    """Yield what is left at 50 %."""
    yield "| network | calibration samples | method | cosine | same class | bytes | CPU time | peak memory |"
    yield "|---" * 8 + "|"
    for row in sorted((each for each in rows if each["sparsity"] == 0.5), key=lambda each: each["network"]):
        classes = row["agreement"] is not None and "MiniLM" not in row["network"]  # an embedding has no classes
        same = f"{row['agreement']:.1%}" if classes else ""
        size = f"{row['bytes'] / row['source_bytes']:.2f}×"
        spent = f"{row['cpu_seconds']:.0f} s | {row['peak_bytes'] / 2**30:.1f} GiB"
        cosine = "" if row["cosine"] is None else f"{row['cosine']:.3f}"
        name = f"{row['network']} | {row.get('calibration') or ''} | {row['method']}"
        yield f"| {name} | {cosine} | {same} | {size} | {spent} |"


def budgets(rows: list[Row]) -> Iterator[str]:
    """Yield wished and measured speed-ups."""
    yield "| network | wished | measured | off by | zeros | original, ONNX Runtime | pruned, our session |"
    yield "|---" * 7 + "|"
    for row in rows:
        if "refused" in row:
            yield f"| {row['network']} | {row['wished']:g} | {row['refused'].partition(': ')[2]} | | | | |"
            continue
        times = " | ".join(f"{1e3 * row[key]:.2f} ms" for key in ("original", "pruned"))
        off = f"{row['measured'] / row['wished'] - 1:+.1%} | {row['sparsity']:.1%}"
        yield f"| {row['network']} | {row['wished']:g} | {row['measured']:.2f} | {off} | {times} |"


def by_layer(row: Row) -> Iterator[str]:
    """Yield predicted and measured times of the layers of one file, those of the same shape and density together."""
    yield "| weights | layers | density | kernel | predicted | measured |"
    yield "|---" * 6 + "|"
    alike: dict[tuple[Any, ...], list[Row]] = {}
    for each in row["layers"]:
        alike.setdefault((*each["shape"], round(each["density"], 2), each["kernel"]), []).append(each)
    for (*shape, density, kernel), layers in sorted(alike.items(), key=lambda item: -_seconds(item[1], "measured")):
        times = " | ".join(_micro(_seconds(layers, key) / len(layers)) for key in TIMES)
        yield f"| {' × '.join(map(str, shape))} | {len(layers)} | {density:.2f} | {kernel} | {times} |"
    sums = " | ".join(_micro(_seconds(row["layers"], key)) for key in TIMES)
    yield f"| all | {len(row['layers'])} | | | {sums} |"


def _seconds(layers: list[Row], key: str) -> float:
    return float(sum(each[key] for each in layers))


def _micro(seconds: float) -> str:
    return f"{1e6 * seconds:.0f} µs"


@click.command(help=__doc__)
@click.option(
    "--curves", "curve_file", type=click.Path(path_type=Path), default=Path("runs/sparsify-curves/curves.jsonl")
)
@click.option(
    "--budgets", "budget_file", type=click.Path(path_type=Path), default=Path("runs/sparsify-budgets/budgets.jsonl")
)
@click.option("--layers-of", default="", help="The network and speed-up whose layers are shown, as NAME=2.")
def main(curve_file: Path, budget_file: Path, layers_of: str) -> None:
    measured, wished = rows_of(curve_file), rows_of(budget_file)
    for lines in (curves(measured), at_half(measured), budgets(wished)):
        click.echo("\n".join(lines) + "\n")
    name, _, speedup = layers_of.partition("=")
    for row in wished:
        if name and name in row["network"] and f"{row['wished']:g}" == speedup and "layers" in row:
            click.echo("\n".join(by_layer(row)) + "\n")


if __name__ == "__main__":
    main()
