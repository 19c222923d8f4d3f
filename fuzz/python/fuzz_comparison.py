"""Files of comparisons: read and planned, as `compare --dry-run` does."""

from pathlib import Path

from fuzzing.outcomes import Reader, attempt
from fuzzing.standalone import main
from fuzzing.values import mutate_toml

MANY = 200  # runs that are planned; a file may ask for billions of seeds


def consume(data: bytes, folder: Path) -> None:
    """List the runs of a comparison."""
    path = folder / "comparison.toml"
    path.write_bytes(data)
    attempt("dry run", lambda: _dry_run(path))


def _dry_run(path: Path) -> None:
    from rigl_compress.experiments.grid import grid_experiment
    from rigl_compress.experiments.spec import load_comparison
    from rigl_compress.experiments.trials import trials_of

    found = load_comparison(str(path)) or grid_experiment(str(path), ("sparsity.sparsity=.8,.9",))
    few = found.with_seeds(1) if found.seeds * len(found.row) > MANY else found
    for trial in trials_of(few, path.parent / "runs"):
        str(trial.state)


READER = Reader("comparison", consume, mutate_toml, share=8)

if __name__ == "__main__":
    main(READER)
