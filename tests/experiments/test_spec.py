"""The spec of an experiment: what is in a comparison file, and what is wrong with it."""

from pathlib import Path

import pytest
import tiny

from rigl_compress.core.errors import InputError
from rigl_compress.experiments.spec import Experiment, Row, load_comparison, parse_comparison, shipped_comparisons
from rigl_compress.experiments.trials import same_training, trials_of
from rigl_compress.pipeline.recipe import load_recipe
from rigl_compress.pipeline.workspace import Run


def text_of(*rows: str, head: str = 'name = "c"') -> str:
    return "\n".join([head, *(f"[[row]]\n{row}" for row in rows)])


RIGL = 'label = "RigL"\nrecipe = "mnist-rigl"'
PLUS = 'label = "RigL+"\nrecipe = "mnist-rigl-plus"\nafter = "RigL"'


@pytest.mark.parametrize(
    ("text", "found", "cure"),
    [
        (text_of(RIGL + '\nlable = "x"'), "unknown key 'row[0].lable'", "did you mean 'label'"),
        (text_of('recipe = "mnist-rigl"'), "key 'row[0].label' is missing", ""),
        (text_of(RIGL, RIGL), "rows 'RigL' and 'RigL'", "rename one"),
        (text_of(RIGL, RIGL.replace("RigL", "rigl", 1)), "rows 'RigL' and 'rigl'", "rename one"),
        (text_of(PLUS), "after 'RigL', expected the label of a row", "Known: RigL+"),
        (text_of(RIGL + '\nafter = "RigL+"', PLUS), "in a cycle (RigL → RigL+ → RigL)", "remove one `after`"),
        (text_of(RIGL + '\nafter = "RigL"'), "in a cycle (RigL → RigL)", "remove one `after`"),
        (text_of(RIGL + '\npaper = "RigL++"'), "paper = 'RigL++'", "did you mean 'RigL+'"),
        (text_of(RIGL + '\nvalues = "fp8"'), "unknown value type 'fp8'", "nown: "),
        (text_of(RIGL, head='name = "c"\nseeds = 0'), "seeds is 0", "expected 1 or more"),
        (text_of(RIGL + "\nseeds = 0"), "row 'RigL' has 0 seeds", "expected 1 or more"),
        (
            text_of(RIGL + "\nseeds = 1", PLUS, head='name = "c"\nseeds = 2'),
            "row 'RigL+' has more seeds than 'RigL'",
            "use as many or fewer",
        ),
        (text_of(RIGL, head='name = "c"\nseeds = "x"'), "seeds is 'x'", "a whole number"),
        (text_of(RIGL, head='name = "c"\nseed = 1'), "unknown key 'seed'", "did you mean 'seeds'"),
        ('name = "c"\nrow = []', "no row", "add [[row]]"),
        ('name = "c"\nrow = 3', "row is 3", "expected a list"),
        (text_of('label = ".."\nrecipe = "mnist-rigl"'), "label '..'", "use letters"),
        (
            text_of('label = "a"\nrecipe = "mnist-rigel"'),
            "row 'a': no recipe 'mnist-rigel'",
            "did you mean 'mnist-rigl'",
        ),
        (text_of(RIGL + '\nset = ["train.epoch=1"]'), "row 'RigL': mnist-rigl: unknown key 'train.epoch'", "'epochs'"),
        (
            text_of('label = "a"\nrecipe = "mnist-structured"'),
            "is a comparison of several runs",
            "rigl-compress compare",
        ),
        ("name = ", "is not valid TOML", ""),
    ],
)
def test_what_is_wrong_is_said_in_a_line(text: str, found: str, cure: str, tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_comparison(str(path))
    said = str(caught.value)
    assert len(said.splitlines()) == 1
    assert found in said
    assert cure in said
    assert str(path) in said


def test_an_unknown_comparison() -> None:
    with pytest.raises(InputError, match=r"no recipe 'mnist-structure'.*did you mean 'mnist-structured'"):
        load_comparison("mnist-structure")


def test_a_comparison_is_not_a_recipe() -> None:
    with pytest.raises(InputError, match="is a comparison of several runs: use `rigl-compress compare --recipe mnist-"):
        load_recipe("mnist-structured")
    assert load_comparison("mnist-rigl") is None


@pytest.mark.parametrize("name", shipped_comparisons())
def test_the_shipped_ones_are_sound(name: str, tmp_path: Path) -> None:
    comparison = load_comparison(name)
    assert comparison is not None
    assert comparison.name == name
    assert len(comparison.about) > 20
    assert len(trials_of(comparison, tmp_path)) == sum(map(comparison.seeds_of, comparison.row))


def test_rows_stand_after_what_they_start_from() -> None:
    rows = (Row("c", "mnist-rigl-plus", after="b"), Row("b", "mnist-rigl-plus", after="a"), Row("a", "mnist-rigl"))
    comparison = Experiment("x", rows, seeds=2)
    trials = trials_of(comparison, Path("out"))
    assert [trial.key for trial in trials] == [(label, seed) for seed in (0, 1) for label in "abc"]
    assert [trial.needs for trial in trials[3:]] == [None, ("a", 1), ("b", 1)]
    start = trials[4].recipe.start
    assert start is not None
    assert Path(start.run) == trials[3].path == Path("out/a/seed=1")
    assert [trial.recipe.seed for trial in trials] == [0, 0, 0, 1, 1, 1]


def test_only_keeps_what_a_row_starts_from() -> None:
    comparison = parse_comparison(text_of(PLUS, RIGL, 'label = "Dense"\nrecipe = "mnist-rigl"'), "c")
    assert [row.label for row in comparison.only(["RigL+"]).row] == ["RigL+", "RigL"]
    assert comparison.only([]) == comparison
    with pytest.raises(InputError, match="no row 'Dnse': did you mean 'Dense'"):
        comparison.only(["Dnse"])


def test_a_recipe_is_looked_for_beside_the_comparison(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(tiny.RECIPE, encoding="utf-8")
    (tmp_path / "c.toml").write_text(text_of('label = "a"\nrecipe = "tiny.toml"'), encoding="utf-8")
    comparison = load_comparison(str(tmp_path / "c.toml"))
    assert comparison is not None
    assert trials_of(comparison.with_overrides(["train.epochs=7"]), tmp_path / "out")[0].recipe.train.epochs == 7


def test_a_run_of_another_recipe_is_in_the_way(tmp_path: Path) -> None:
    comparison = Experiment("c", (Row("a", "mnist-rigl"),))
    (trial,) = trials_of(comparison, tmp_path)
    run = Run.create(trial.path, trial.recipe)
    assert trials_of(comparison, tmp_path) == [trial]
    run.recipe_file.write_text(tiny.recipe().to_toml(), encoding="utf-8")
    with pytest.raises(InputError, match="holds a run of another recipe: choose another folder with --output"):
        trials_of(comparison, tmp_path)


def test_how_a_path_is_written_is_no_other_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    one, other, third = (tiny.recipe(f"start.run={path}") for path in (tmp_path / "a", "a", "b"))
    assert same_training(one, other)
    assert not same_training(one, third)
    assert same_training(tiny.recipe("about=x"), tiny.recipe("about=y"))
    assert not same_training(tiny.recipe("seed=1"), tiny.recipe("seed=2"))


def test_a_row_can_have_fewer_seeds_than_the_others(tmp_path: Path) -> None:
    comparison = parse_comparison(text_of(RIGL, PLUS + "\nseeds = 1", head='name = "c"\nseeds = 2'), "c.toml")
    assert [trial.name for trial in trials_of(comparison, tmp_path)] == [
        "RigL, seed 0",
        "RigL+, seed 0",
        "RigL, seed 1",
    ]
