"""The command `rigl-compress`: a group whose commands are loaded when they are called."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path

import click

from rigl_compress import __version__
from rigl_compress.cli._text import printable
from rigl_compress.models.errors import InputError, did_you_mean

COMMANDS = (
    "train",
    "prune",
    "export",
    "bench",
    "run",
    "compare",
    "sweep",
    "inspect",
    "flops",
    "landscape",
    "data",
    "list",
)
BAD_INPUT, INTERRUPTED = 2, 130
# What the library calls by a parameter is an option here.
_OPTIONS = {"overwrite=True": "--force", "resume=True": "--resume"}
# Options of some commands that the others have as a change of the recipe.
_CHANGES = {
    "--model": "model.name=NAME",
    "--data": "data.name=NAME",
    "--seed": "seed=N",
    "--epochs": "train.epochs=N",
    "--batch-size": "train.batch=N",
    "--lr": "learning_rate.peak=RATE",
    "--sparsity": "sparsity.sparsity=SHARE",
    "--method": "sparsity.method=NAME",
    "--optimizer": "optimizer.name=NAME",
}


class LazyGroup(click.Group):
    """A group that imports `rigl_compress.cli.NAME` when the command NAME is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of the pipeline."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command; each module calls its command `command`."""
        if cmd_name not in COMMANDS:
            ctx.fail(f"no command {cmd_name!r}: {did_you_mean(cmd_name, COMMANDS)}")
        command: click.Command = import_module(f"rigl_compress.cli.{cmd_name}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rigl-compress")
@click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """Train sparse, deploy sparse.

    \b
    Example:
      rigl-compress train --recipe mnist-demo --run runs/demo
      rigl-compress inspect runs/demo
    """
    ctx.obj = traceback


def main() -> None:
    """Run the command line; bad input is one sentence on stderr and exit code 2."""
    traceback = "--traceback" in sys.argv
    os.environ["PYTHONSAFEPATH"] = (
        "1"  # processes of sweeps and comparisons import nothing of the working folder either
    )
    try:
        cli(prog_name="rigl-compress", standalone_mode=False)
    except click.exceptions.Abort:
        click.echo(f"interrupted: {_how_to_go_on(sys.argv[1:])}", err=True)
        sys.exit(INTERRUPTED)
    except (InputError, OSError, click.ClickException) as error:
        if traceback:
            raise
        click.echo(_explain(error), err=True)
        sys.exit(BAD_INPUT)


def _how_to_go_on(words: Sequence[str]) -> str:
    """Say what to do after Ctrl-C, which depends on the command.

    >>> _how_to_go_on(["bench", "a.onnx"])
    'it begins anew when the same command is given again'
    >>> _how_to_go_on(["sweep", "--recipe", "mnist-rigl"])
    'what was finished is kept, and the same command goes on with the rest'
    """
    command = next((word for word in words if word in COMMANDS), "")
    if command in ("run", "sweep", "compare"):
        return "what was finished is kept, and the same command goes on with the rest"
    if command == "train":
        folder = _option(words, "--run") or f"runs/{Path(_option(words, '--recipe')).stem}"
        if (Path(folder) / "recipe.toml").is_file():
            return f"the epochs that were finished are kept; `rigl-compress train --run {folder} --resume` goes on"
    return "it begins anew when the same command is given again"


def _option(words: Sequence[str], name: str) -> str:
    """Give the value of an option as it was typed.

    >>> _option(["train", "--run", "a"], "--run"), _option(["--run=b"], "--run"), _option([], "--run")
    ('a', 'b', '')
    """
    joined = (word.partition("=")[2] for word in words if word.startswith(f"{name}="))
    apart = (value for word, value in pairwise(words) if word == name)
    return next(joined, "") or next(apart, "")


def _explain(error: Exception) -> str:
    """Say what was wrong, in one line; a group without a command shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if isinstance(error, click.UsageError):
        text = _usage(error)
    elif isinstance(error, OSError):
        named = f": {error.filename}" if error.filename else ""
        text = f"{error.strerror or error}{named}; check the path, its permissions and the space on the disk"
    else:
        text = str(error)
        for parameter, option in _OPTIONS.items():
            text = text.replace(parameter, option)
    return printable(f"error: {' '.join(text.splitlines())}")


def _usage(error: click.UsageError) -> str:
    """Say what was wrong with a call: what to write instead where that is known, else where the help is."""
    path, command = (error.ctx.command_path, error.ctx.command) if error.ctx else ("rigl-compress", cli)
    options = {name for each in command.params for name in each.opts}
    said = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.option_name in _CHANGES and "--set" in options:
        return f"{path} has no option {error.option_name}: write --set {_CHANGES[error.option_name]}"
    if isinstance(error, click.NoSuchOption) and error.option_name == "--run" and options & {"run", "source", "models"}:
        return f"{path} takes the run without an option: {path} DIR"
    if "unexpected extra argument" in said and "--recipe" in options:
        return f"{said}: name a recipe with --recipe NAME, and a change of it with --set KEY=VALUE"
    return said if "(see `" in said else f"{said} (see `{path} --help`)"
