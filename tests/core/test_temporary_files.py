"""Temporary files: those of dead processes are collected, those of living ones are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rigl_compress.core import temporary_files as temporaries
from rigl_compress.core.artifacts import atomic_pair, atomic_path, write_bytes, write_text
from rigl_compress.core.temporary_files import collect, make_folder, temporary_for


@pytest.fixture
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left_by(path: Path, pid: int, host: str | None = None) -> Path:
    """What a process leaves that is killed while it writes a file."""
    with temporary_for(path) as temporary:
        name = temporary.name.replace(f".{os.getpid()}.", f".{pid}.")
    own = temporaries._host()
    found = path.with_name(name.replace(f".{own}.", f".{host or own}."))
    found.write_text("half of")
    return found


def test_files_of_dead_processes_are_collected(tmp_path: Path, dead: int) -> None:
    left = [left_by(tmp_path / name, dead) for name in ("a.json", "b.json")]
    collect(tmp_path)
    assert not any(path.exists() for path in left)


def test_files_of_living_processes_and_of_users_are_kept(tmp_path: Path, dead: int) -> None:
    kept = [left_by(tmp_path / "a.json", os.getppid()), left_by(tmp_path / "a.json", dead, host="elsewhere")]
    kept += [tmp_path / name for name in (".notes.tmp", "notes.1.tmp", ".a.json.1.tmp", f".a.host.{dead}.tmp.bak")]
    for path in kept[2:]:
        path.write_text("mine")
    with temporary_for(tmp_path / "a.json") as temporary:
        temporary.write_text("half of")
        collect(tmp_path)
        assert temporary.exists()
    assert all(path.exists() for path in kept)


def test_a_file_of_another_host_is_collected_after_a_day(tmp_path: Path) -> None:
    left = left_by(tmp_path / "a.json", 1, host="elsewhere")
    os.utime(left, (0, 0))
    collect(tmp_path)
    assert not left.exists()


def test_a_file_left_by_an_earlier_process_of_our_number_is_collected(tmp_path: Path) -> None:
    """In a container every process may have the number 1."""
    left = left_by(tmp_path / "a.json", os.getpid())
    collect(tmp_path)
    assert not left.exists()


def test_writing_a_file_collects_what_was_left_of_it(tmp_path: Path, dead: int) -> None:
    left, other = left_by(tmp_path / "a.json", dead), left_by(tmp_path / "b.json", dead)
    write_text(tmp_path / "a.json", "new")
    assert not left.exists()
    assert other.exists()


def test_what_is_written_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Content, then the name: after a power failure there is the old file or the new one."""
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_fsync(handle: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).name}")
        fsync(handle)

    def note_replace(self: Path, target: Path) -> Path:
        done.append(f"rename {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "replace", note_replace)
    write_bytes(tmp_path / "new" / "a", b"content")
    assert done[0] == f"sync {tmp_path.name}"
    assert done[1].startswith("sync .a.")
    assert done[2:] == ["rename a", "sync new"]


def test_folders_that_were_made_are_named(tmp_path: Path) -> None:
    assert make_folder(tmp_path / "a" / "b") == [tmp_path / "a" / "b", tmp_path / "a"]
    assert make_folder(tmp_path / "a") == []


def test_an_error_of_the_system_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    def full() -> None:
        with atomic_path(tmp_path / "a"):
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left") as caught:
        full()
    assert caught.value.filename == str(tmp_path / "a")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="directory") as caught:
        write_text(tmp_path / "folder", "text")
    assert caught.value.filename == str(tmp_path / "folder")


# Pairs


def write_pair(folder: Path, content: str) -> None:
    with atomic_pair(folder / "data", folder / "about") as (data, about):
        data.write_text(content)
        about.write_text(content)


def pair(folder: Path) -> tuple[str, str]:
    files = (folder / "data", folder / "about")
    return tuple(path.read_text() if path.exists() else "" for path in files)  # type: ignore[return-value]


@pytest.mark.parametrize("deadly", [True, False], ids=["killed", "failing"])
def test_a_pair_is_never_half_old_and_half_new(tmp_path: Path, deadly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped before each call of the system in turn, until none is left to stop at."""

    class StopError(BaseException):
        pass

    calls = 0

    def stopping(real: object, at: int) -> object:
        def call(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if deadly and calls >= at:  # a dead process removes nothing any more
                raise StopError
            if calls == at:
                raise OSError(5, "Input/output error")
            return real(*arguments, **options)  # type: ignore[operator]

        return call

    seen = set()
    for at in range(1, 100):
        write_pair(tmp_path, "old")
        calls = 0
        with monkeypatch.context() as patch:
            for module, name in ((os, "fsync"), (os, "unlink"), (os, "replace"), (os, "open")):
                patch.setattr(module, name, stopping(getattr(module, name), at))
            try:
                write_pair(tmp_path, "new")
            except (StopError, OSError):
                stopped = True
            else:
                stopped = False
        seen.add(pair(tmp_path))
        if not stopped:
            break
    assert pair(tmp_path) == ("new", "new")
    assert seen <= {("old", "old"), ("old", ""), ("new", ""), ("new", "new")}
    assert ("old", "old") in seen
    assert deadly or ("old", "") not in seen, "what failed is put back"
    write_pair(tmp_path, "last")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["about", "data"]
