"""rigl-compress flops"""

from typing import Any

import click

from rigl_compress.cli import _options as options
from rigl_compress.cli._option_types import OneOf


@click.command()
@options.recipe
@options.model
@options.data
@options.overrides
@options.option(
    "--convention",
    type=OneOf("FLOP convention", ("multiply-add", "micronet")),
    default="multiply-add",
    show_default=True,
    help="Convention for inference FLOPs.",
)
@options.option("--paper", is_flag=True, help="Check the FLOPs printed in the paper's ImageNet tables instead.")
@options.trust_code
@options.as_json
def command(
    recipe: str | None,
    model: str | None,
    data: str | None,
    overrides: tuple[str, ...],
    convention: str,
    paper: bool,
    as_json: bool,
) -> None:
    """Count the FLOPs of inference and training for a recipe, without training.

    \b
    Example:
      rigl-compress flops --recipe mnist-rigl --set sparsity.method=snfs
      rigl-compress flops --paper
    """
    changes = options.changes(overrides, model, data)
    if paper and (recipe or changes):
        raise click.UsageError("--paper prints the paper's own tables: leave out --recipe, --model, --data and --set")
    if paper:
        _show_paper(as_json)
    else:
        _show_recipe(options.needs_recipe(recipe), changes, convention, as_json)


def _show_recipe(recipe: str, changes: list[str], convention: str, as_json: bool) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.recipe import load_recipe
    from rigl_compress.pipeline.recipe_flops import flops_json, recipe_flops

    loaded = load_recipe(recipe, changes)
    report, facts = recipe_flops(loaded, convention), flops_json(loaded, convention)
    if as_json:
        _render.json_result(facts)
        return
    rows = [(row.name, row.nonzeros, row.weights, row.dense_flops, row.sparse_flops) for row in report.layers]
    rows.append(("total", report.nonzeros, report.weights, report.dense, report.sparse))
    shown = [
        (name, f"{alive:,.0f} of {all_:,}", f"{dense:,.0f}", f"{left:,.0f}") for name, alive, all_, dense, left in rows
    ]
    _render.table(f"inference FLOPs by {convention}", ("layer", "weights", "dense", "sparse"), shown)
    _render.text("", *([facts["budget"], ""] if "budget" in facts else []))
    _show_training(loaded.sparsity.method_name, facts)
    if report.uncounted:
        _render.text("", f"not counted: {', '.join(report.uncounted)}")


def _show_training(method: str, facts: dict[str, Any]) -> None:
    from rigl_compress.cli import _render

    dense = facts["dense_training_gflops"]
    training = [
        (name, f"{dense[name]:,.4f}", f"{gflops:,.4f}", f"{gflops / dense[name]:.4f}×")
        for name, gflops in facts["training_gflops"].items()
    ]
    if training:
        _render.table("training GFLOPs", ("convention", "dense", method, "ratio"), training)
    else:
        _render.text("training FLOPs are not counted: the number of samples is unknown, or the method has no cost")


def _show_paper(as_json: bool) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.experiments.published_flops.printed_and_counted import (
        NOTES,
        TABLES,
        all_figures,
        comparison_rows,
    )

    figures = all_figures()
    if as_json:
        _render.json_result({"format": 1, "figures": [figure.to_json() for figure in figures]})
        return
    for each in TABLES:
        columns = ("method", "S", "train: printed", "computed", "test: printed", "computed")
        _render.table(each.title, columns, comparison_rows(each, figures))
        _render.text("")
    _render.text("Figures with a letter do not follow from the paper's own convention:")
    _render.text(*(f"  {letter}  {note.text}" for letter, note in NOTES.items()))
    agree = sum(figure.agrees for figure in figures)
    _render.text(f"{agree} of {len(figures)} printed figures follow from the convention.")
