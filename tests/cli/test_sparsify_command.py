"""rigl-compress sparsify, from the command line."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from onnx_layers import correlated, perceptron, saved
from tiny import Cli


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    saved(perceptron(), tmp_path / "net.onnx")
    np.savez(tmp_path / "data.npz", x=correlated(120, 32))
    return tmp_path


def test_tables_page_and_timings(cli: Cli, files: Path) -> None:
    done = cli("sparsify", "net.onnx", "-o", "small.onnx", "--calibration", "data.npz", "--html", "page.html")
    assert done.code == 0
    for words in ("w2", "signal to noise", "mean cosine", "original in onnxruntime", "written to small.onnx"):
        assert words in done.out
    page = (files / "page.html").read_text(encoding="utf-8")
    assert "Outputs against latency" in page
    assert "w3" in page


def test_json_and_conditions(cli: Cli, files: Path) -> None:
    words = ["sparsify", "net.onnx", "--calibration", "data.npz", "--no-timing", "--json", "--sparsity", "0.4"]
    done = cli(*words, "-o", "a.onnx", "--assert", "cosine>=0.5")
    found = json.loads(done.out)
    assert done.code == 0
    assert found["sparsity"] == pytest.approx(0.4, abs=1e-3)
    assert found["conditions"][0]["holds"]
    assert cli(*words, "-o", "b.onnx", "--assert", "agreement>=1.5").code == 1
    assert (files / "b.onnx").exists()


def test_a_curve_is_several_files_and_one_page(cli: Cli, files: Path) -> None:
    words = ["--calibration", "data.npz", "--no-timing", "--json", "--html", "page.html"]
    done = cli("sparsify", "net.onnx", "-o", "small.onnx", "--sparsity", "0.3", "--sparsity", "0.6", *words)
    assert done.code == 0, done.err
    found = json.loads(done.out)["curve"]
    assert [round(each["sparsity"], 2) for each in found] == [0.3, 0.6]
    assert found[0]["quality"]["snr"] > found[1]["quality"]["snr"]
    assert (files / "small-0.3.onnx").exists()
    assert (files / "page.html").read_text(encoding="utf-8").count("zeros, obs") == 2
    again = cli("sparsify", "net.onnx", "-o", "small.onnx", "--sparsity", "0.9", "--sparsity", "0.6", *words)
    assert again.code == 2
    assert not (files / "small-0.9.onnx").exists()


def test_curves_have_five_points_and_say_how_far_they_are(cli: Cli, files: Path) -> None:
    words = ["net.onnx", "-o", "small.onnx", "--curve", "--no-timing", "--calibration", "data.npz"]
    done = cli("sparsify", *words)
    assert done.code == 0, done.err
    assert sorted(path.name for path in files.glob("small-*")) == [f"small-0.{each}.onnx" for each in (4, 5, 6, 7, 8)]
    assert re.search(r"pruned, 3 of 3, \d+ s, about 0 s left", done.err)
    again = cli("sparsify", *words, "--sparsity", "0.9")
    assert (again.code, "leave out --sparsity" in again.err) == (2, True)


def test_errors_are_one_line(cli: Cli, files: Path) -> None:
    (files / "old.onnx").write_bytes(b"old")
    for words, message in (
        (["net.onnx", "-o", "old.onnx"], "--force"),
        (["none.onnx", "-o", "a.onnx"], "does not exist"),
        (["data.npz", "-o", "a.onnx"], "not an ONNX file"),
        (["net.onnx", "-o", "a.onnx", "--calibration", "none"], "does not exist"),
        (["net.onnx", "-o", "a.onnx", "--assert", "nothing>=1"], "no known metric"),
        (["net.onnx", "-o", "a.onnx", "--method", "obs"], "calibration"),
    ):
        done = cli("sparsify", *words)
        assert done.code == 2, words
        assert message in done.err
        assert len(done.err.strip().splitlines()) == 1
    assert sorted(path.name for path in files.iterdir()) == ["data.npz", "net.onnx", "old.onnx"]


def test_pages_do_not_replace_models(cli: Cli, files: Path) -> None:
    before = (files / "net.onnx").read_bytes()
    for page, message in (
        ("net.onnx", "net.onnx is the source itself"),
        ("small.onnx", "small.onnx is the pruned model, too"),
        (".", ". is a folder"),
    ):
        done = cli("sparsify", "net.onnx", "-o", "small.onnx", "--no-timing", "--html", page)
        assert (done.code, message in done.err) == (2, True), done.err
    words = ["--sparsity", "0.3", "--sparsity", "0.6", "--html", "small-0.6.onnx"]
    assert "is the pruned model, too" in cli("sparsify", "net.onnx", "-o", "small.onnx", *words).err
    assert (files / "net.onnx").read_bytes() == before
    assert sorted(path.name for path in files.iterdir()) == ["data.npz", "net.onnx"]
