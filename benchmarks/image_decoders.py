"""Which decoder reads photographs fastest, and which of them notices damage.

    python benchmarks/image_decoders.py FOLDER [--rounds 3]

FOLDER has JPEG files somewhere below it. Each decoder reads a file, decodes it, cuts the same random part out and
resizes it to 224 × 224, as training does: on the files as they are, and on the same enlarged to 500 × 375, the usual
size in ImageNet. CPU time of one thread; what is not installed is left out. Then each reads a file cut in the middle.
At last, the quick look at every file before the first step.
"""

import io
import random
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

import click
import numpy as np

from rigl_compress.data.crops import random_box
from rigl_compress.data.image_decoding import damage, part_of

SIDE = 224
Decoder = Callable[[bytes, random.Random], Any]


def pillow() -> Decoder:
    from PIL import Image

    def decode(content: bytes, draw: random.Random) -> Any:
        with Image.open(io.BytesIO(content)) as image:
            return np.asarray(part_of(image, random_box(image.size, draw), SIDE))

    return decode


def opencv(interpolation: str) -> Decoder:
    import cv2

    cv2.setNumThreads(1)

    def decode(content: bytes, draw: random.Random) -> Any:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
        return _cut(image, draw)

    def _cut(image: Any, draw: random.Random) -> Any:
        left, top, right, bottom = map(round, random_box((image.shape[1], image.shape[0]), draw))
        part = image[top:bottom, left:right]
        return cv2.cvtColor(
            cv2.resize(part, (SIDE, SIDE), interpolation=getattr(cv2, interpolation)), cv2.COLOR_BGR2RGB
        )

    return decode


def simplejpeg() -> Decoder:
    import cv2
    import simplejpeg as library

    def decode(content: bytes, draw: random.Random) -> Any:
        image = library.decode_jpeg(content)
        left, top, right, bottom = map(round, random_box((image.shape[1], image.shape[0]), draw))
        return cv2.resize(image[top:bottom, left:right], (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    return decode


DECODERS: dict[str, Callable[[], Decoder]] = {
    "Pillow (this package)": pillow,
    "OpenCV, linear": lambda: opencv("INTER_LINEAR"),
    "OpenCV, area": lambda: opencv("INTER_AREA"),
    "simplejpeg, OpenCV's area": simplejpeg,
}


def enlarged(content: bytes) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.open(io.BytesIO(content)).convert("RGB").resize((500, 375)).save(stream, "jpeg", quality=90)
    return stream.getvalue()


def milliseconds(decode: Decoder, files: list[bytes]) -> float:
    draw = random.Random(0)
    began = process_time()
    for content in files:
        decode(content, draw)
    return 1000 * (process_time() - began) / len(files)


def of_damage(decode: Decoder, content: bytes) -> str:
    try:
        decode(content[: len(content) // 2], random.Random(0))
    except Exception as error:  # each library has its own
        return f"{type(error).__name__}: {error}".splitlines()[0][:60]
    return "not noticed"


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("--rounds", default=3, show_default=True)
@click.option("--count", default=200, show_default=True, help="Files to read.")
def main(folder: Path, rounds: int, count: int) -> None:
    """Print milliseconds per image, and what each decoder says to a damaged file."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in (".jpg", ".jpeg"))[:count]
    files = [path.read_bytes() for path in paths]
    large = [enlarged(content) for content in files]
    click.echo(
        f"{len(files)} files, mean {np.mean([len(f) for f in files]) / 1000:.0f} kB; enlarged "
        f"{np.mean([len(f) for f in large]) / 1000:.0f} kB"
    )
    decoders = {}
    for name, make in DECODERS.items():
        try:
            decoders[name] = make()
        except ImportError as error:
            click.echo(f"{name}: {error}")
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in decoders}
    for _ in range(rounds):
        for name, decode in decoders.items():
            times[name].append((milliseconds(decode, files), milliseconds(decode, large)))
    for name, decode in decoders.items():
        small, big = (median(values) for values in zip(*times[name], strict=True))
        click.echo(f"{name:<26} {small:6.2f} ms  {big:6.2f} ms   half a file: {of_damage(decode, files[0])}")
    began = process_time()
    for path in paths:
        damage(path)
    click.echo(f"the quick look                {1000 * (process_time() - began) / len(paths):.3f} ms a file")


if __name__ == "__main__":
    main()
