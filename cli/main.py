"""The command `rigl-compress`: a group whose commands are loaded when they are called."""

import sys
from importlib import import_module

import click

from rigl_compress import __version__
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
    try:
        cli(prog_name="rigl-compress", standalone_mode=False)
    except click.exceptions.Abort:
        again = "`rigl-compress train --run DIR --resume` goes on; run, sweep and compare do when they are called again"
        click.echo(f"interrupted: what was finished is kept; {again}", err=True)
        sys.exit(INTERRUPTED)
    except (InputError, OSError, click.ClickException) as error:
        if traceback:
            raise
        click.echo(_explain(error), err=True)
        sys.exit(BAD_INPUT)


def _explain(error: Exception) -> str:
    """Say what was wrong, in one line; a group without a command shows its help."""
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        return error.format_message()
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "rigl-compress"
        text = f"{error.format_message()} (see `{path} --help`)"
    elif isinstance(error, OSError):
        named = f": {error.filename}" if error.filename else ""
        text = f"{error.strerror or error}{named}; check the path, its permissions and the space on the disk"
    else:
        text = str(error)
    return f"error: {' '.join(text.splitlines())}"
