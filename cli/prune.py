"""rigl-compress prune"""

from pathlib import Path

import click

from rigl_compress.cli import _options as options


@click.command()
@options.run
@options.dry_run
@options.trust_code
@options.as_json
def command(run: Path, dry_run: bool, as_json: bool) -> None:
    """Remove dead neurons from a trained network without changing its outputs.

    \b
    Example:
      rigl-compress prune runs/mnist-rigl
    """
    from rigl_compress.cli import _render
    from rigl_compress.models.prune_plan import PrunePlan
    from rigl_compress.pipeline.prune.stage import prune_run
    from rigl_compress.pipeline.workspace import Run

    opened = Run.open(run)
    done = prune_run(opened, write=not dry_run)
    if as_json:
        _render.json_result(done)
        return
    report = done["report"]
    before, after = report["before"], report["after"]
    _render.text(report["architecture"], "")
    rows = [
        ("parameters", f"{before['parameters']:,}", f"{after['parameters']:,}"),
        ("non-zeros", f"{before['nonzeros']:,}", f"{after['nonzeros']:,}"),
        ("FLOPs, zeros skipped", f"{before['flops']:,.0f}", f"{after['flops']:,.0f}"),
        ("FLOPs, dense", f"{before['dense_flops']:,.0f}", f"{after['dense_flops']:,.0f}"),
        ("bytes, bit-mask convention", f"{before['bitmask_bytes']:,.0f}", f"{after['bitmask_bytes']:,.0f}"),
    ]
    _render.table("", ("", "before", "after"), rows)
    _render.text("", str(PrunePlan.from_json(done["plan"])))
    _render.text(f"max output difference: {report['difference']:.2g} (relative: {report['relative_difference']:.2g})")
    _render.text("dry run: nothing written" if dry_run else f"written to {opened.pruned_file}")
