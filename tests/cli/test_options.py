"""An option means the same in every command that has it."""

from collections import defaultdict
from pathlib import Path

import click
import pytest
from cli_reference import page
from command_tree import LEAVES, options_of
from tiny import recipe

from rigl_compress.cli._option_types import Name, OneOf
from rigl_compress.experiments.loss_landscape import CURVES
from rigl_compress.exporters.value_precision import VALUES
from rigl_compress.models.layer_flops import FLOP_CONVENTIONS
from rigl_compress.pipeline.export.stage import NETWORKS, TARGETS
from rigl_compress.pipeline.run_pipeline import RunConfig, stages_of
from rigl_compress.sparsity.training_flops import TRAINING_CONVENTIONS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
OPTIONS = options_of()
SHARED = {name: commands for name, commands in OPTIONS.items() if len(commands) > 1}


def declaration(option: click.Option) -> tuple[object, ...]:
    """What has to be the same: names, type, help. Defaults, and whether it can be repeated, depend on the command."""
    return option.opts, option.name, type(option.type), vars(option.type), option.help, option.is_flag


@pytest.mark.parametrize("name", list(SHARED))
def test_a_shared_option_is_declared_alike(name: str) -> None:
    found = {" ".join(path): declaration(option) for path, option in SHARED[name].items()}
    first = next(iter(found.values()))
    assert found == dict.fromkeys(found, first)


def test_there_are_shared_options() -> None:
    assert {"--recipe", "--output", "--json", "--inputs", "--jobs", "--threads"} <= SHARED.keys()


def test_a_short_form_stands_for_one_option() -> None:
    long_names = defaultdict(set)
    for name, commands in OPTIONS.items():
        for option in commands.values():
            for short in (each for each in option.opts if not each.startswith("--")):
                long_names[short].add(name)
    assert {short: len(names) for short, names in long_names.items()} == dict.fromkeys(long_names, 1)


@pytest.mark.parametrize("name", list(OPTIONS))
def test_help_is_a_sentence(name: str) -> None:
    for option in OPTIONS[name].values():
        assert (option.help or "").endswith("."), option.help
        assert "[default" not in (option.help or ""), "show_default says it"
        assert "repeated" not in (option.help or ""), "the help says so by itself"


def test_arguments_of_one_name_look_alike() -> None:
    found = defaultdict(set)
    for command in LEAVES.values():
        for each in command.params:
            if isinstance(each, click.Argument):
                found[each.name].add((each.metavar, each.nargs))
    assert {name: len(kinds) for name, kinds in found.items()} == dict.fromkeys(found, 1)


KNOWN = {
    "--values": tuple(VALUES),
    "--network": NETWORKS,
    "--target": TARGETS,
    "--convention": tuple(FLOP_CONVENTIONS),
    "--training-convention": tuple(TRAINING_CONVENTIONS),
    "--between": tuple(CURVES),
    "--from": tuple(stage.name for stage in stages_of(RunConfig(recipe(), Path("run")))),
}


@pytest.mark.parametrize("name", [*KNOWN, "--until"])
def test_fixed_names_are_the_library_s(name: str) -> None:
    for option in OPTIONS[name].values():
        assert isinstance(option.type, OneOf)
        assert sorted(option.type.choices) == sorted(KNOWN.get(name, KNOWN["--from"]))


def test_every_option_that_takes_text_has_a_type_or_a_metavar() -> None:
    """The help shows no bare TEXT."""
    for name, commands in OPTIONS.items():
        for option in commands.values():
            assert option.metavar or isinstance(option.type, Name) or option.type is not click.STRING, name


def test_the_reference_page_is_the_help(request: pytest.FixtureRequest) -> None:
    """Refresh it with `pytest tests/cli --refresh-golden`."""
    if request.config.getoption("--refresh-golden"):
        PAGE.write_text(page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page()
