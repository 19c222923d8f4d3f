"""Options that commands take together; their values arrive as one object."""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rigl_compress.cli import _options as options

if TYPE_CHECKING:
    from rigl_compress.integrations.loggers import MetricLogger
    from rigl_compress.pipeline.recipe import Recipe

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class RecipeOptions:
    """What to train, and where to write it."""

    recipe: str | None
    output: Path | None
    model: str | None
    data: str | None
    kernels: str | None
    overrides: tuple[str, ...]
    seed: int | None

    @property
    def changes(self) -> list[str]:
        """The changes of the recipe."""
        kernels = [] if self.kernels is None else [f"sparsity.kernels={self.kernels}"]
        return [*kernels, *options.changes(self.overrides, self.model, self.data, self.seed)]

    def load(self) -> "Recipe":
        """Read the recipe, with its changes."""
        from rigl_compress.pipeline.recipe import load_recipe

        return load_recipe(options.needs_recipe(self.recipe), self.changes)


@dataclass(frozen=True)
class TrainingOptions:
    """Where and how to train, and what to print."""

    data_dir: Path | None
    device: str
    threads: int | None
    log_to: tuple[str, ...]
    dry_run: bool
    as_json: bool

    def set_threads(self) -> None:
        """Train with this number of threads, if it is set."""
        import torch

        if self.threads:
            torch.set_num_threads(self.threads)

    def loggers(self, run_folder: Path) -> "tuple[MetricLogger, ...]":
        """Return the loggers of `--log-to`; a dry run checks them and opens none."""
        from rigl_compress.integrations.loggers import logger_maker

        makers = [logger_maker(text, run_folder) for text in self.log_to]
        return () if self.dry_run else tuple(make() for make in makers)


recipe_options = options.all_of(
    options.recipe,
    options.output(metavar="DIR", show_default="runs/RECIPE"),
    options.model,
    options.data,
    options.kernels,
    options.overrides,
    options.seed,
)


def training_options(threads: str) -> Callable[[F], F]:
    """Return the decorator for `TrainingOptions`; `threads` describes the default number of threads."""
    return options.all_of(
        options.data_dir,
        options.device,
        options.threads(show_default=threads),
        options.log_to,
        options.dry_run,
        options.trust_code,
        options.as_json,
    )


def grouped(**kinds: type[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Pass the values of some options as objects: the parameter `name` is a `kinds[name]`, of options by its fields.

    Below all options: `--trust-code` reads their values one by one.
    """

    def group(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def packed(**values: Any) -> None:
            objects = {
                name: kind(**{field.name: values.pop(field.name) for field in fields(kind)})
                for name, kind in kinds.items()
            }
            command(**objects, **values)

        return packed

    return group
