"""The lock of a folder: held by one process at a time, released by its death."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import Cli, Trainer, recipe, snapshot, untouched

from rigl_compress.core import folder_lock as lock
from rigl_compress.core.errors import InputError
from rigl_compress.core.folder_lock import locked
from rigl_compress.pipeline.prune.stage import prune_run
from rigl_compress.pipeline.workspace import Run, locked_for

HOLD = """
import sys
from pathlib import Path
from rigl_compress.core.folder_lock import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that holds a folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", HOLD, str(folder)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "held\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def holder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Holder]:
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    holder = Holder(folder)
    yield holder
    holder.kill()


def test_a_lock_leaves_nothing_behind(folder: Path) -> None:
    with locked(folder / "below"):
        assert (folder / "below" / ".lock").exists()
    assert not folder.exists()


def test_who_holds_a_folder_can_hold_it_again(folder: Path) -> None:
    with locked(folder), locked(folder / ".." / folder.name):
        (folder / "file").touch()
    assert snapshot(folder) == {"file": b""}


def test_another_process_is_refused_and_told_who_holds_it(folder: Path, holder: Holder) -> None:
    with pytest.raises(InputError) as caught, locked(folder):
        pytest.fail("two hold it")
    message = str(caught.value)
    assert message.startswith(f"{folder} is in use by process {holder.process.pid} on ")
    assert message.endswith("wait until it ends, or stop it, then try again")
    assert len(message.splitlines()) == 1


def test_another_thread_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 0.0)
    refused: list[str] = []

    def take() -> None:
        try:
            with locked(folder):
                refused.append("")
        except InputError as error:
            refused.append(str(error))

    with locked(folder):
        thread = threading.Thread(target=take)
        thread.start()
        thread.join()
    assert f"process {os.getpid()} on" in refused[0]


def test_a_killed_holder_is_no_obstacle(folder: Path, holder: Holder) -> None:
    (folder / "recipe.toml").touch()
    holder.kill()
    assert (folder / ".lock").exists()
    with locked(folder):
        pass
    assert snapshot(folder) == {"recipe.toml": b""}


def test_a_holder_that_ends_is_waited_for(folder: Path, holder: Holder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE", 60.0)
    threading.Timer(0.2, holder.process.kill).start()
    with locked(folder):
        pass


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(InputError, match="run exists and is not a folder"), locked(tmp_path / "run"):
        pass


def test_a_file_system_without_locks_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", none)
    with pytest.warns(UserWarning, match="run is on a file system without locks"), locked(folder):
        assert folder.exists()


# What takes it


@pytest.mark.parametrize("options", [{}, {"resume": True}, {"overwrite": True}])
def test_training_is_refused_in_a_folder_where_another_trains(
    trainer: Trainer, folder: Path, holder: Holder, options: dict[str, bool]
) -> None:
    Run.create(folder, recipe())
    with untouched(folder), pytest.raises(InputError, match="is in use by process"):
        trainer(**options)


def test_all_that_write_into_a_run_are_refused(cli: Cli, trainer: Trainer, data_dir: Path, holder: Holder) -> None:
    holder.kill()
    run = trainer("train.epochs=1", "sparsity.sparsity=0.97")
    again = Holder(run.path)
    onnx = run.path / "model.onnx"
    commands = (
        ("prune", run.path),
        ("export", run.path, "-o", onnx),
        ("bench", run.path, "--html", run.path / "page.html"),
        ("run", "-o", run.path, "--data-dir", data_dir),
        ("train", "--resume", run.path, "--data-dir", data_dir),
        ("sweep", "--recipe", run.recipe_file, "-o", run.path, "--data-dir", data_dir),
        ("compare", "--recipe", run.recipe_file, "-o", run.path, "--data-dir", data_dir),
    )
    try:
        for command in commands:
            with untouched(run.path):
                done = cli(*command)
            assert done.code == 2, command
            assert f"{run.path} is in use by process {again.process.pid} on" in done.err
        assert cli("prune", run.path, "--dry-run").code == 0
        assert cli("inspect", run.path).code == 0
        assert cli("export", run.path, "-o", run.path.parent / "elsewhere.onnx").code == 0
    finally:
        again.kill()
    assert cli("export", run.path, "-o", onnx).code == 0


def test_only_run_folders_are_held_for_the_files_in_them(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", recipe())
    with locked_for(tmp_path / "a", None, run.path / "b", run.path / "c"):
        assert (run.path / ".lock").exists()
        assert not (tmp_path / ".lock").exists()


def test_the_lock_is_not_in_the_way_of_its_holder(trainer: Trainer) -> None:
    run = trainer("train.epochs=1")
    with run.locked():
        prune_run(run)
    assert not (run.path / ".lock").exists()
