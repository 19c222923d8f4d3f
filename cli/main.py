"""The command `rigl-compress`: a group whose commands are imported when they are used."""

import os
import sys
import warnings
from collections.abc import Sequence, Set
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import click

from rigl_compress import __version__
from rigl_compress.cli._text import printable
from rigl_compress.core.errors import InputError, StoppedError, did_you_mean

COMMANDS = (
    "train",
    "prune",
    "export",
    "bench",
    "run",
    "sparsify",
    "compare",
    "sweep",
    "inspect",
    "flops",
    "landscape",
    "calibrate",
    "data",
    "list",
)
# Commands whose module has another name: a file name stands once in the source.
_MODULES = {"sparsify": "sparsify_command"}
BAD_INPUT, INTERRUPTED, TERMINATED = 2, 130, 143
KNOWN = (InputError, StoppedError, OSError, click.ClickException, click.exceptions.Abort)  # not defects of the program
# Parameters that the library's messages name, and the options that set them.
_OPTIONS = {"overwrite=True": "--force", "resume=True": "--resume RUN"}
# Plausible options that are recipe values; some are options of other commands.
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


_format_warning = warnings.formatwarning


class LazyGroup(click.Group):
    """A group that imports `rigl_compress.cli.NAME` when the command NAME is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the pipeline."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command: the name `command` of its module."""
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:  # the shell completes: nothing may be printed
                return None
            ctx.fail(f"no command {cmd_name!r}: {did_you_mean(cmd_name, COMMANDS)}")
        module = _MODULES.get(cmd_name, cmd_name)
        command: click.Command = import_module(f"rigl_compress.cli.{module}").command
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rigl-compress")
@click.option("--traceback", is_flag=True, help="Show the Python traceback of an error.")
@click.pass_context
def cli(ctx: click.Context, traceback: bool) -> None:
    """Train sparse, deploy sparse.

    \b
    Example:
      rigl-compress train --recipe mnist-demo -o runs/demo
      rigl-compress inspect runs/demo
    """
    ctx.obj = traceback
    if ctx.invoked_subcommand != "train" and int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        raise InputError(f"`{ctx.invoked_subcommand}` runs in one process: start it without torchrun")


def main() -> None:
    """Run the command line; an input error is one sentence on stderr and exit code 2."""
    warnings.formatwarning = warning_line
    os.environ["PYTHONSAFEPATH"] = "1"  # worker processes do not import from the working folder either
    try:
        cli(prog_name="rigl-compress", standalone_mode=False)
    except KNOWN as error:
        sys.exit(report(error))


def warning_line(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> str:
    """Show what is for the user without the place in the code that warns; the rest is for developers.

    >>> warning_line("fc1 stays dense", UserWarning, "sparsifier.py", 100)
    'warning: fc1 stays dense\\n'
    """
    return f"warning: {message}\n" if category is UserWarning else _format_warning(message, category, *where, **more)


def report(error: BaseException) -> int:
    """Print an error in one line, and return the exit code."""
    if isinstance(error, (click.exceptions.Abort, KeyboardInterrupt)):
        click.echo(f"interrupted: {_interrupt_advice(sys.argv[1:])}", err=True)
        return INTERRUPTED
    if "--traceback" in sys.argv:
        raise error
    click.echo(_explain(error), err=True)
    return TERMINATED if isinstance(error, StoppedError) else BAD_INPUT


def _interrupt_advice(words: Sequence[str]) -> str:
    """Return what to do after Ctrl-C, which depends on the command.

    >>> _interrupt_advice(["bench", "a.onnx"])
    'the same command starts over'
    >>> _interrupt_advice(["sweep", "--recipe", "mnist-rigl"])
    'finished work is kept, the same command resumes it'
    """
    command = next((word for word in words if word in COMMANDS), "")
    if command in ("run", "sparsify", "sweep", "compare"):
        return "finished work is kept, the same command resumes it"
    if command == "train":
        named = _option(words, "--resume", "-o", "--output")
        folder = named or f"runs/{Path(_option(words, '--recipe')).stem}"
        if (Path(folder) / "recipe.toml").is_file():
            return f"finished epochs are kept; resume with `rigl-compress train --resume {folder}`"
    return "the same command starts over"


def _option(words: Sequence[str], *names: str) -> str:
    """Return the value of an option as it was typed.

    >>> _option(["train", "-o", "a"], "-o", "--output"), _option(["--output=b"], "--output"), _option([], "-o")
    ('a', 'b', '')
    """
    joined = (word.partition("=")[2] for word in words if word.startswith(tuple(f"{name}=" for name in names)))
    apart = (value for word, value in pairwise(words) if word in names)
    return next(joined, "") or next(apart, "")


def _explain(error: BaseException) -> str:
    """Return the message of an error in one line; a group without a command shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if isinstance(error, click.UsageError):
        text = _usage(error)
    elif isinstance(error, OSError):
        named = f": {error.filename}" if error.filename else ""
        text = f"{error.strerror or error}{named}; check the path, its permissions and the free disk space"
    else:
        text = str(error)
        for parameter, option in _OPTIONS.items():
            text = text.replace(parameter, option)
    prefix = "" if isinstance(error, StoppedError) else "error: "
    return printable(f"{prefix}{' '.join(text.splitlines())}")


def _usage(error: click.UsageError) -> str:
    """Return the message of a usage error: what to write instead where that is known, else where the help is."""
    path, command = (error.ctx.command_path, error.ctx.command) if error.ctx else (_typed_path(sys.argv[1:]), cli)
    options = {name for each in command.params for name in each.opts}
    if isinstance(error, click.NoSuchOption):
        close = [name for name in error.possibilities or [] if _is_close(name, error.option_name)]
        error = click.NoSuchOption(error.option_name, possibilities=close, ctx=error.ctx)
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and (instead := _instead(error.option_name, options)):
        return f"{path} has no option {error.option_name}: use {instead}"
    if "unexpected extra argument" in message and "--recipe" in options:
        return f"{message}: use --recipe NAME for a recipe and --set KEY=VALUE for a change of it"
    return message if "(see `" in message else f"{message} (see `{path} --help`)"


def _is_close(known: str, typed: str) -> bool:
    """Return whether a suggestion is one: `--help` is close to `--model` only by its length.

    >>> _is_close("--help", "--model"), _is_close("--help", "--hepl"), _is_close("--html", "--modl")
    (False, True, True)
    """
    return known != "--help" or typed.startswith("--he")


def _typed_path(words: Sequence[str]) -> str:
    """Return the command that was typed, for errors that do not know theirs.

    >>> _typed_path(["train", "--resume"]), _typed_path(["--nope"])
    ('rigl-compress train', 'rigl-compress')
    """
    named = next((word for word in words if word in COMMANDS), "")
    return f"rigl-compress {named}".strip()


def _instead(option: str, options: Set[str]) -> str:
    """Return what a command takes instead of an option that it does not have.

    >>> _instead("--epochs", {"--set"}), _instead("--run", {"run"}), _instead("--run", {"--output"})
    ('--set train.epochs=N', 'a positional argument for the run', '--output DIR')
    """
    if option == "--run":
        positional = bool(options & {"run", "source", "models"})
        return "a positional argument for the run" if positional else "--output DIR" if "--output" in options else ""
    return f"--set {_CHANGES[option]}" if option in _CHANGES and "--set" in options else ""
