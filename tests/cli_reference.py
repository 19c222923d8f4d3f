"""The page docs/reference/cli.md, written from the click tree."""

from collections.abc import Iterator
from inspect import cleandoc

import click
from command_tree import LEAVES, context_of, options_of

_HEAD = """\
# Command line

`rigl-compress COMMAND --help` shows the same for one command.

Inputs are positional (a run folder, `RUN`, or an ONNX file), outputs are `-o`. Results go to stdout, remarks and errors
to stderr. Exit codes: 0 success, 1 a condition of `--assert` does not hold or a run of a grid failed, 2 invalid input,
130 interrupted. `rigl-compress --traceback COMMAND` shows the Python traceback of an error.
[Shell completion](../howto/shell-completion.md) completes commands, options, recipes and registered names.
"""


def page() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *_shared(), *(line for path in LEAVES for line in _command(path))])


def _shared() -> Iterator[str]:
    """Yield the options that several commands have."""
    yield "## Options of several commands\n"
    for name, commands in sorted(options_of().items()):
        if len(commands) > 1:
            option = next(iter(commands.values()))
            yield f"- `{name}`: {option.help} {_listed([' '.join(path) for path in commands])}"
    yield ""


def _listed(names: list[str]) -> str:
    return "All commands." if len(names) == len(LEAVES) else f"({', '.join(names)})"


def _command(path: tuple[str, ...]) -> Iterator[str]:
    """Yield the section of a command: usage, description, examples, options."""
    command, context = LEAVES[path], context_of(path)
    about, _, examples = cleandoc(command.help or "").partition("\b\nExample:\n")
    yield f"## {' '.join(path)}\n"
    yield f"{about.strip()}\n"
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    yield "Example:\n"
    yield "```text"
    yield from (line.strip() for line in examples.splitlines() if line.strip())
    yield "```\n"
    yield from (f"- `{names}`: {text}" for names, text in _records(command, context))
    yield ""


def _records(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    found = [each.get_help_record(context) for each in command.params]
    return [record for record in found if record]
