"""rigl-compress flops"""

import click

from rigl_compress.cli import _options as options


@click.command()
@options.recipe
@options.overrides
@click.option("--convention", default="multiply-add", show_default=True, help="How inference FLOPs are counted.")
@options.as_json
def command(recipe: str | None, overrides: tuple[str, ...], convention: str, as_json: bool) -> None:
    """Count what a recipe's network costs to run and to train, without training it.

    \b
    Example:
      rigl-compress flops --recipe mnist-rigl --set sparsity.method=snfs
    """
    from rigl_compress.cli import _render
    from rigl_compress.pipeline.flops import flops_json, recipe_flops
    from rigl_compress.pipeline.recipe import load_recipe

    loaded = load_recipe(options.needs_recipe(recipe), overrides)
    report, facts = recipe_flops(loaded, convention), flops_json(loaded, convention)
    if as_json:
        _render.json_result(facts)
        return
    rows = [
        (
            layer.name,
            f"{layer.nonzeros:,.0f} of {layer.weights:,}",
            f"{layer.dense_flops:,.0f}",
            f"{layer.sparse_flops:,.0f}",
        )
        for layer in report.layers
    ]
    rows.append(
        ("sum", f"{report.nonzeros:,.0f} of {report.weights:,}", f"{report.dense:,.0f}", f"{report.sparse:,.0f}")
    )
    _render.table(f"inference FLOPs by {convention}", ("layer", "weights", "dense", "sparse"), rows)
    _render.text("")
    dense = facts["dense_training_gflops"]
    training = [
        (name, f"{dense[name]:,.4f}", f"{gflops:,.4f}", f"{gflops / dense[name]:.4f}×")
        for name, gflops in facts["training_gflops"].items()
    ]
    method = loaded.sparsity.method
    _render.table("training GFLOPs", ("convention", "dense", method, "ratio"), training)
    if report.uncounted:
        _render.text("", f"not counted: {', '.join(report.uncounted)}")
