"""rigl-compress calibrate"""

import click

from rigl_compress.cli import _options as options


@click.command()
@options.dry_run
@options.option("--reset", is_flag=True, help="Remove the stored costs: those of the package are used again.")
@options.as_json
def command(dry_run: bool, reset: bool, as_json: bool) -> None:
    """Measure dense and sparse layers on this machine, for the choice between them. Takes about a minute.

    \b
    Example:
      rigl-compress calibrate
      rigl-compress calibrate --reset
    """
    from rigl_compress.cli import _render
    from rigl_compress.runtime.cost_tables import coefficients
    from rigl_compress.runtime.user_costs import costs_file

    if reset:
        if dry_run:
            raise click.UsageError("--dry-run measures, --reset does not: leave one of them out")
        found = costs_file().is_file()
        costs_file().unlink(missing_ok=True)
        coefficients.cache_clear()
        content = {"removed": str(costs_file()) if found else None}
        _render.json_result(content) if as_json else _render.text(
            f"removed {costs_file()}" if found else "no costs of this machine were stored"
        )
        return
    _measure(dry_run, as_json)


def _measure(dry_run: bool, as_json: bool) -> None:
    from rigl_compress.cli import _render
    from rigl_compress.core.errors import InputError
    from rigl_compress.core.provenance import environment
    from rigl_compress.runtime.calibration import QUICK, calibrated
    from rigl_compress.runtime.cost_tables import coefficients
    from rigl_compress.runtime.kernel_library import unavailable_reason
    from rigl_compress.runtime.user_costs import costs_file, machine, write_costs

    if reason := unavailable_reason():
        raise InputError(f"calibrate needs the sparse kernels; {reason}")
    with _render.bench_listener() as listener:
        families, summaries = calibrated(QUICK, listener)
    if not dry_run:
        write_costs(families, environment()["date"][:10])
        coefficients.cache_clear()
    stored = None if dry_run else str(costs_file())
    if as_json:
        _render.json_result({"families": families, "machine": machine(), "summary": summaries, "stored": stored})
        return
    _render.text(*(f"{family}: {sentence}" for family, sentence in summaries.items()))
    _render.text("", f"stored in {stored}" if stored else "not stored")
