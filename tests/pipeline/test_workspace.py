"""The run folder: begun, taken up, refused, replaced."""

from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from tiny import Trainer, assert_same_model, recipe, snapshot, untouched

from rigl_compress.core.errors import InputError
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.workspace import Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path / "run", recipe())


def test_a_new_run_holds_its_resolved_recipe(run: Run) -> None:
    assert [path.name for path in run.path.iterdir()] == ["recipe.toml"]
    assert run.recipe() == recipe()
    assert Run.open(str(run.path)) == run


def test_folders_above_are_made_and_an_empty_folder_is_taken(tmp_path: Path) -> None:
    Run.create(tmp_path / "a" / "b", recipe())
    (tmp_path / "empty").mkdir()
    Run.create(tmp_path / "empty", recipe())


def test_a_folder_that_exists_is_refused(run: Run) -> None:
    message = "exists: choose another folder, resume with resume=True, or replace it with overwrite=True"
    with untouched(run.path), pytest.raises(InputError, match=message):
        Run.create(run.path, recipe("seed=1"))


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    for force in (False, True):
        with untouched(tmp_path), pytest.raises(InputError, match="run exists"):
            Run.create(tmp_path / "run", recipe(), overwrite=force)


def test_force_replaces_a_run(trainer: Trainer) -> None:
    run = trainer("train.epochs=1")
    Run.create(run.path, recipe("seed=1"), overwrite=True)
    assert [path.name for path in run.path.iterdir()] == ["recipe.toml"]
    assert run.recipe() == recipe("seed=1")


def test_force_never_deletes_what_is_not_a_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with untouched(tmp_path), pytest.raises(InputError, match="exists and is not a run folder"):
        Run.create(tmp_path, recipe(), overwrite=True)


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_in_which_nothing_was_begun_is_empty(tmp_path: Path, force: bool) -> None:
    """A kill while the first file is written leaves a temporary file and a lock."""
    (tmp_path / ".lock").write_text("process 1")
    (tmp_path / ".recipe.toml.elsewhere.1.tmp").write_text("name = ")
    assert Run.create(tmp_path, recipe(), overwrite=force).recipe() == recipe()


def test_a_run_is_replaced_only_when_there_is_room_for_the_new_recipe(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = trainer("train.epochs=1")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with untouched(run.path), pytest.raises(OSError, match="No space left"):
        Run.create(run.path, recipe("seed=1"), overwrite=True)


def test_what_is_left_of_a_run_that_was_being_replaced_can_be_resumed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after any number of the files was deleted, what is left is an unfinished run."""
    run = trainer()
    prune_run(run)
    whole, unlink = run.model(), Path.unlink
    files = len(snapshot(run.path)) - 1
    for kept in range(1, files):
        left = kept

        def stop(path: Path, **options: bool) -> None:
            nonlocal left
            if path.exists() and not path.name.startswith("."):
                left -= 1
                if left < 0:
                    raise KeyboardInterrupt
            unlink(path, **options)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "unlink", stop)
            with pytest.raises(KeyboardInterrupt):
                Run.create(run.path, recipe("seed=1"), overwrite=True)
        trainer(resume=True)
        assert_same_model(run.model(), whole)
        assert len(list(run.metrics())) == tiny.EPOCHS
        prune_run(run)


def test_force_never_deletes_other_files_beside_a_run(run: Run) -> None:
    (run.path / "thesis").mkdir()
    (run.path / "thesis" / "thesis.tex").write_text("years of work")
    Run.create(run.path, recipe("seed=1"), overwrite=True)
    assert (run.path / "thesis" / "thesis.tex").exists()


@pytest.mark.parametrize("place", [".", "none", "file"])
def test_what_is_not_a_run_is_not_opened(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("")
    found = {"none": "none does not exist", "file": "file is a file", ".": "is not a run folder"}[place]
    with pytest.raises(InputError, match=rf"{found}.*`rigl-compress train`"):
        Run.open(tmp_path / place)


def test_a_damaged_recipe(run: Run) -> None:
    run.recipe_file.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"recipe\.toml"):
        run.recipe()


@pytest.mark.parametrize("read", [Run.model, Run.result])
def test_an_unfinished_run_says_how_to_go_on(run: Run, read: Callable[[Run], object]) -> None:
    with pytest.raises(InputError) as caught:
        read(run)
    assert str(caught.value).endswith(f"is not finished: resume with `rigl-compress train --resume {run.path}`")


def test_metrics(run: Run) -> None:
    assert list(run.metrics()) == []
    rows = [{"epoch": epoch, "error": 1 / epoch} for epoch in (1, 2, 3)]
    for row in rows:
        run.add_metrics(row)
    assert list(run.metrics()) == rows
    run.keep_metrics(2)
    assert list(run.metrics()) == rows[:2]
    run.keep_metrics(0)
    assert list(run.metrics()) == []


@pytest.mark.parametrize("kept", range(1, len('{"epoch": 2}')))
def test_a_line_cut_short_by_a_kill_is_forgotten(run: Run, kept: int) -> None:
    run.add_metrics({"epoch": 1})
    with run.metrics_file.open("a") as file:
        file.write('{"epoch": 2}'[:kept])
    assert list(run.metrics()) == [{"epoch": 1}]
    run.keep_metrics(5)
    run.add_metrics({"epoch": 2})
    assert list(run.metrics()) == [{"epoch": 1}, {"epoch": 2}]


def test_a_line_that_cannot_be_written_leaves_the_others(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    run.add_metrics({"epoch": 1})
    monkeypatch.setattr("os.fsync", full)
    with untouched(run.path), pytest.raises(OSError, match="No space left") as caught:
        run.add_metrics({"epoch": 2})
    assert caught.value.filename == str(run.metrics_file)


def test_the_result_is_json_with_a_format(run: Run) -> None:
    numbers = {"seed": 0, "sparsity": 0.9, "seconds": 2.5, "final_error": 1.5, "best_error": 1}
    content = {"recipe": "a", "method": "rigl", "data": "mnist", **numbers}
    run.write_result(content)
    assert run.result() == {"format": 1, **content}
