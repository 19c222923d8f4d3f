"""Every command of the command line with its options, read from the click tree."""

from collections.abc import Iterator

import click

from rigl_compress.cli.main import cli

Path = tuple[str, ...]  # the words that call a command


def leaves(command: click.Command, path: Path = ()) -> Iterator[tuple[Path, click.Command]]:
    """Yield every command that does something, with the words that call it."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


LEAVES = dict(leaves(cli))


def context_of(path: Path) -> click.Context:
    """Return a context in which a command can write its help."""
    parent = click.Context(cli, info_name="rigl-compress", **cli.context_settings)  # click remembers its first context
    for word in path[:-1]:
        parent = click.Context(click.Group(word), info_name=word, parent=parent)
    return click.Context(LEAVES[path], info_name=path[-1], parent=parent)


def options_of() -> dict[str, dict[Path, click.Option]]:
    """Return the options of all commands: long name → command → declaration."""
    found: dict[str, dict[Path, click.Option]] = {}
    for path, command in LEAVES.items():
        for option in command.params:
            if isinstance(option, click.Option):
                found.setdefault(max(option.opts, key=len), {})[path] = option
    return found
