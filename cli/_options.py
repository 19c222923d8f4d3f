"""Options that several commands share."""

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from rigl_compress.pipeline.bench.stage import BenchConfig

F = TypeVar("F", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
dry_run = click.option("--dry-run", is_flag=True, help="Say what would be done, and write nothing.")
recipe = click.option(
    "--recipe", metavar="NAME|FILE", help="A shipped recipe (see `rigl-compress list`) or a TOML file."
)
model = click.option(
    "--model",
    metavar="NAME|PACKAGE.MODULE:FACTORY",
    help="Another network than the recipe's: a registered one, or a function of your own that gives one.",
)
overrides = click.option(
    "--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override a value of the recipe; can be repeated."
)
data = click.option(
    "--data",
    metavar="NAME|PACKAGE.MODULE:FACTORY",
    help="Another data set than the recipe's: a registered one, or a function of your own that gives one.",
)
data_dir = click.option(
    "--data-dir", type=click.Path(path_type=Path), help="Folder with data sets, looked at before all others."
)
device = click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda or mps.")
threads = click.option("--threads", type=click.IntRange(min=1), help="CPU threads.  [default: all cores]")


def trust_code(command: F) -> F:
    """Add the option with which the user gives the word for code, and let it hold while the command runs."""

    @wraps(command)
    def trusting(*args: Any, trust_code: bool, **settings: Any) -> Any:
        from rigl_compress.models.trust import only_named, trusting_code

        with trusting_code(trust_code), only_named(_texts(settings)):
            return command(*args, **settings)

    words = "Import and run the code that a recipe or a run folder names (PACKAGE.MODULE:FACTORY)."
    return cast(F, click.option("--trust-code", is_flag=True, help=words)(trusting))


def _texts(settings: Mapping[str, Any]) -> list[str]:
    """Give what the user wrote where code can be named."""
    one, many = ("model", "data"), ("overrides", "grid")
    return [settings[key] for key in one if settings.get(key)] + [
        each for key in many for each in settings.get(key, ())
    ]


def changes(
    overrides: tuple[str, ...], model: str | None = None, data: str | None = None, seed: int | None = None
) -> list[str]:
    """Give the options that stand for changes of the recipe as such; --set has the last word on all but the seed.

    >>> changes(("model.options.width=0.5",), model="mlp", seed=3)
    ['model={}', 'model.name=mlp', 'model.options.width=0.5', 'seed=3']
    >>> changes((), data="cifar10")
    ['data={}', 'data.name=cifar10']
    """
    named = {"model": model, "data": data}  # the options of another one do not fit
    instead = [change for key, name in named.items() if name for change in (f"{key}={{}}", f"{key}.name={name}")]
    return [*instead, *overrides, *([] if seed is None else [f"seed={seed}"])]


def needs_recipe(name: str | None) -> str:
    """Insist on a recipe."""
    if name is None:
        raise click.UsageError("give a recipe: --recipe NAME or --recipe FILE (see `rigl-compress list`)")
    return name


_BENCHING = (
    click.option("--backend", "backends", multiple=True, help="A runtime (see `rigl-compress list`); can be repeated."),
    click.option("--batch", "batches", multiple=True, type=click.IntRange(min=1), help="Batch size; can be repeated."),
    click.option(
        "--threads", multiple=True, type=click.IntRange(min=1), help="CPU threads; can be repeated.  [default: 1]"
    ),
    click.option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Shape of an input."),
    click.option("--input", "inputs", type=click.Path(path_type=Path), help="An .npz file of inputs, by name."),
    click.option(
        "--provider", "providers", multiple=True, help="Provider of ONNX Runtime, e.g. CUDAExecutionProvider."
    ),
    click.option("--openings", type=click.IntRange(min=1), default=5, show_default=True, help="Times to open models."),
    click.option("--rounds", type=click.IntRange(min=1), default=20, show_default=True, help="Rounds in an opening."),
    click.option("--seconds", type=float, default=10.0, show_default=True, help="Most time for a candidate."),
    click.option("--profile", is_flag=True, help="Also show the time of every operator in ONNX Runtime."),
)


def benching(command: F) -> F:
    """Add the options of a benchmark."""
    for option in reversed(_BENCHING):
        command = option(command)
    return command


def bench_config(
    backends: tuple[str, ...],
    batches: tuple[int, ...],
    threads: tuple[int, ...],
    shapes: tuple[str, ...],
    inputs: Path | None,
    providers: tuple[str, ...],
    openings: int,
    rounds: int,
    seconds: float,
    profile: bool,
    baseline: str = "",
) -> "BenchConfig":
    """Give the settings of a benchmark from its options."""
    from rigl_compress.pipeline.bench.inputs import Wishes, parse_shape
    from rigl_compress.pipeline.bench.stage import BenchConfig
    from rigl_compress.pipeline.bench.timing import TimingPlan
    from rigl_compress.pipeline.inputs_file import read_inputs

    return BenchConfig(
        backends=tuple(dict.fromkeys(backends)) or ("onnxruntime",),
        batches=tuple(dict.fromkeys(batches)),
        threads=tuple(dict.fromkeys(threads)) or (1,),
        wishes=Wishes(dict(map(parse_shape, shapes)), read_inputs(inputs)),
        plan=TimingPlan(openings=openings, rounds=rounds, seconds=seconds),
        providers=providers,
        baseline=baseline,
        profile=profile,
    )
