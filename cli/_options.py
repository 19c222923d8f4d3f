"""The options that several commands share, each declared once: the same name, type and help everywhere."""

from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from rigl_compress.cli._option_types import (
    REFERENCE,
    Name,
    OneOf,
    execution_providers,
    fixed,
    recipe_settings,
    registered,
)

if TYPE_CHECKING:
    from rigl_compress.pipeline.bench.stage import BenchConfig

F = TypeVar("F", bound=Callable[..., Any])
PATH = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
STAGES = ("train", "prune", "export", "bench", "report")


class Option(click.Option):
    """An option whose help says whether it can be repeated."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option's line of the help."""
        record = super().get_help_record(ctx)
        return (record[0], f"{record[1]}  [repeatable]") if record and self.multiple else record


option = partial(click.option, cls=Option)

# Inputs are positional.
run = click.argument("run", metavar="RUN", type=PATH)
source = click.argument("source", metavar="RUN|FILE", type=PATH)

# What to train
recipe = option(
    "--recipe",
    type=Name(registered("recipes", "comparisons"), "NAME|FILE", files=True),
    help="Shipped recipe (see `rigl-compress list`) or TOML file.",
)
model = option("--model", type=Name(registered("models"), REFERENCE), help="Model to use instead of the recipe's.")
data = option("--data", type=Name(registered("data sets"), REFERENCE), help="Data set to use instead of the recipe's.")
kernels = option(
    "--kernels",
    type=OneOf("kernels", ("auto", "sparse", "masked")),
    show_default="the recipe's",
    help="Train on sparse kernels, with masks, or with whichever is faster.",
)
overrides = option(
    "--set", "overrides", multiple=True, type=Name(recipe_settings, "KEY=VALUE"), help="Override a value of the recipe."
)
grid = option(
    "--grid",
    multiple=True,
    type=Name(recipe_settings, "KEY=V1,V2"),
    help="Values to combine, e.g. sparsity.method=rigl,set.",
)
seed = option("--seed", type=int, metavar="N", show_default="the recipe's", help="Random seed.")

# Where and how to run
data_dir = option("--data-dir", type=PATH, metavar="DIR", help="Folder to search for data sets first.")
device = option(
    "--device",
    type=Name(fixed("auto", "cpu", "cuda", "mps"), "auto|cpu|cuda|mps"),
    default="auto",
    show_default=True,
    help="Device to use.",
)
threads = partial(option, "--threads", type=COUNT, metavar="N", help="CPU threads.")
processes = option(
    "--processes",
    type=COUNT,
    metavar="N",
    show_default="1, or torchrun's",
    help="Processes that train together, each with its part of every batch.",
)
log_to = option(
    "--log-to",
    multiple=True,
    type=Name(fixed("tensorboard", "wandb", "mlflow"), "NAME[:WHERE]|PACKAGE.MODULE:FUNCTION"),
    help="Also log the metrics to tensorboard[:FOLDER], wandb[:PROJECT], mlflow[:URI] or a function.",
)
dry_run = option("--dry-run", is_flag=True, help="Show the plan without writing files.")

# What is written
output = partial(option, "-o", "--output", type=PATH, help="Output path.")
force = option("--force", is_flag=True, help="Overwrite existing output.")
target = option(
    "--target",
    type=OneOf("target", ("onnx", "sparse-runtime")),
    default="onnx",
    show_default=True,
    help="onnx: standard operators only. sparse-runtime: sparse operators, for hosts that load the kernel library.",
)
encoding = partial(
    option,
    "--encoding",
    type=Name(registered("encodings"), REFERENCE),
    help="Encoding of sparse weights: dense, sparse, bitmask, gap8, or compact (the smallest for each tensor).",
)
values = option(
    "--values",
    type=OneOf("value type", ("fp32", "fp16", "int8")),
    default="fp32",
    show_default=True,
    help="Precision of the exported weights.",
)
markdown = option(
    "--markdown", "markdown_file", type=PATH, metavar="FILE", help="Also write the results to this Markdown file."
)
png = option("--png", type=PATH, metavar="FILE", help="Also write a plot to this PNG file.")
as_json = option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")

# What is measured
inputs = option(
    "--inputs", type=PATH, metavar="FILE", help="Input arrays to use instead of random ones (.npz, by input name)."
)
backends = option(
    "--backend",
    "backends",
    multiple=True,
    type=Name(registered("backends"), REFERENCE),
    help="Runtime to measure (see `rigl-compress list`).",
)
batches = option("--batch", "batches", multiple=True, type=COUNT, metavar="N", help="Batch size to measure.")
profile = option("--profile", is_flag=True, help="Also show the time of each operator in ONNX Runtime.")


def all_of(*group: Callable[[Any], Any]) -> Callable[[F], F]:
    """Return a decorator that adds several options to a command, in this order."""

    def add(command: F) -> F:
        for each in reversed(group):
            command = each(command)
        return command

    return add


def trust_code(command: F) -> F:
    """Add `--trust-code`, and allow the code that the user names while the command runs."""

    @wraps(command)
    def trusting(*args: Any, trust_code: bool, **settings: Any) -> Any:
        from rigl_compress.core.trust import only_named, trusting_code

        with trusting_code(trust_code), only_named(_texts(settings)):
            return command(*args, **settings)

    words = "Allow importing the code that a recipe or a run folder names (PACKAGE.MODULE:NAME)."
    return cast(F, option("--trust-code", is_flag=True, help=words)(trusting))


def _texts(settings: Mapping[str, Any]) -> list[str]:
    """Return what the user typed in the options that can name code."""
    one, many = ("model", "data", "encoding"), ("overrides", "grid", "backends", "log_to")
    return [settings[key] for key in one if settings.get(key)] + [
        each for key in many for each in settings.get(key, ())
    ]


def changes(
    overrides: tuple[str, ...], model: str | None = None, data: str | None = None, seed: int | None = None
) -> list[str]:
    """Return the options that change a recipe as overrides; `--set` wins over all but the seed.

    A network by reference may have learnt already: the recipe's [init] was written for another, and is left out.

    >>> changes(("model.options.width=0.5",), model="mlp", seed=3)
    ['model={}', 'model.name=mlp', 'model.options.width=0.5', 'seed=3']
    >>> changes((), model="mynet:pretrained")
    ['model={}', 'model.name=mynet:pretrained', 'init={}']
    >>> changes(("model.name=mynet:pretrained", "init.scale=2"))
    ['init={}', 'model.name=mynet:pretrained', 'init.scale=2']
    >>> changes((), data="cifar10")
    ['data={}', 'data.name=cifar10']
    """
    named = {"model": model, "data": data}  # the options of another one do not fit
    instead = [change for key, name in named.items() if name for change in (f"{key}={{}}", f"{key}.name={name}")]
    instead += ["init={}"] if any(":" in each for each in (model or "", *_named_models(overrides))) else []
    return [*instead, *overrides, *([] if seed is None else [f"seed={seed}"])]


def _named_models(overrides: tuple[str, ...]) -> list[str]:
    pairs = (override.partition("=") for override in overrides)
    return [value for key, _, value in pairs if key.strip() == "model.name"]


def needs_recipe(name: str | None) -> str:
    """Return the recipe; raise a usage error if there is none."""
    if name is None:
        raise click.UsageError("no recipe: use --recipe NAME or --recipe FILE (see `rigl-compress list`)")
    return name


bench = all_of(
    backends,
    batches,
    threads(multiple=True, show_default="1"),
    option("--shape", "shapes", multiple=True, metavar="NAME=1,3,224,224", help="Shape of an input."),
    inputs,
    option(
        "--provider",
        "providers",
        multiple=True,
        type=Name(execution_providers),
        help="Execution provider of ONNX Runtime.",
    ),
    option("--openings", type=COUNT, metavar="N", default=5, show_default=True, help="Sessions per model."),
    option("--rounds", type=COUNT, metavar="N", default=20, show_default=True, help="Rounds per session."),
    option("--seconds", type=float, metavar="S", default=10.0, show_default=True, help="Time limit per candidate (s)."),
    profile,
)


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
    """Return the configuration of a benchmark from its options."""
    from rigl_compress.pipeline.bench.model_inputs import InputSpec, parse_shape
    from rigl_compress.pipeline.bench.stage import BenchConfig
    from rigl_compress.pipeline.bench.timing import TimingPlan
    from rigl_compress.pipeline.npz_inputs import read_inputs

    return BenchConfig(
        backends=tuple(dict.fromkeys(backends)) or ("onnxruntime",),
        batches=tuple(dict.fromkeys(batches)),
        threads=tuple(dict.fromkeys(threads)) or (1,),
        input_spec=InputSpec(dict(map(parse_shape, shapes)), read_inputs(inputs)),
        plan=TimingPlan(openings=openings, rounds=rounds, seconds=seconds),
        providers=providers,
        baseline=baseline,
        profile=profile,
    )
