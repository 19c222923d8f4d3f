"""Types of options that take a name: the shell completes them from the registries, and fixed names are checked."""

from collections.abc import Callable, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

from rigl_compress.cli._name_cache import Names, all_names
from rigl_compress.core.errors import did_you_mean

REFERENCE = "NAME|PACKAGE.MODULE:NAME"
# Recipe keys whose values are names.
_NAMED_KEYS = {
    "data.name": "data sets",
    "init.weights": "initializers",
    "model.name": "models",
    "optimizer.name": "optimizers",
    "sparsity.decay": "decays",
    "sparsity.distribution": "distributions",
    "sparsity.method": "methods",
}


class OneOf(click.Choice[str]):
    """One of a few fixed names; the error for any other suggests the nearest.

    >>> OneOf("stage", ("train", "prune")).convert("prunne", None, None)
    Traceback (most recent call last):
    click.exceptions.BadParameter: unknown stage 'prunne': did you mean 'prune'? Known: prune, train
    """

    def __init__(self, kind: str, names: Sequence[str]) -> None:
        super().__init__(names)
        self.kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return a known name as it is."""
        if value not in self.choices:
            self.fail(f"unknown {self.kind} {value!r}: {did_you_mean(str(value), self.choices)}", param, ctx)
        return str(value)


class Name(click.ParamType):  # type: ignore[type-arg]  # generic only in newer releases of click
    """A name of an open collection: completed by the shell, and checked by whoever looks it up."""

    name = "name"

    def __init__(self, names: Callable[[str], Names], metavar: str = "NAME", *, files: bool = False) -> None:
        self.names, self.metavar, self.files = names, metavar, files

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return what the help shows for the value."""
        del param, ctx
        return self.metavar

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that start with what was typed; bash offers files only where no name fits."""
        del ctx, param
        found = {name: about for name, about in self.names(incomplete).items() if name.startswith(incomplete)}
        files = [CompletionItem(incomplete, type="file")] if self.files else []
        return [*files, *(CompletionItem(name, help=about or None) for name, about in found.items())]


def registered(*kinds: str) -> Callable[[str], Names]:
    """Return a function that lists everything registered under some kinds."""
    return lambda _: {name: about for kind in kinds for name, about in all_names().get(kind, {}).items()}


def fixed(*names: str) -> Callable[[str], Names]:
    """Return a function that lists some names."""
    return lambda _: dict.fromkeys(names, "")


def execution_providers(_: str) -> Names:
    """List the execution providers of the installed ONNX Runtime."""
    import onnxruntime

    return dict.fromkeys(onnxruntime.get_available_providers(), "")


def recipe_settings(typed: str) -> Names:
    """List the keys of a recipe as `KEY=`; after a key that takes a name, the names."""
    key, separator, values = typed.partition("=")
    if not separator:
        return {f"{each}=": "" for each in all_names().get("recipe keys", {})}
    before = f"{key}={values.rpartition(',')[0]}".rstrip(",") + ("," if "," in values else "")
    return {f"{before}{name}": about for name, about in all_names().get(_NAMED_KEYS.get(key, ""), {}).items()}
