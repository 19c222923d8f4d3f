"""Images in folders of the library `datasets`, decoded one by one when they are needed."""

from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Unpack

from rigl_compress.core.errors import InputError
from rigl_compress.core.optional_packages import optional_package
from rigl_compress.data.dataset import DataSpec
from rigl_compress.data.download_sources import Log
from rigl_compress.data.huggingface_tables import Table, checked_column, holds_tables, read_tables
from rigl_compress.data.image_decoding import DamagedImageError, check_pillow
from rigl_compress.data.image_files import ImageFiles, Reading
from rigl_compress.data.image_options import ImageOptions, image_shape, reading


@dataclass(frozen=True, eq=False)
class Rows:
    """The files of images in a column, by the text of their number: picklable, for worker processes."""

    rows: Any  # datasets.Dataset
    column: str

    def __call__(self, number: str) -> BinaryIO:
        """Open the image of a row."""
        content = self.rows[int(number.rpartition(" ")[2])][self.column]["bytes"]
        if content is None:  # only a path, which may lie anywhere
            raise DamagedImageError("the table has a path instead of the image: save it with its images embedded")
        return BytesIO(content)


class TableOptions(ImageOptions, total=False):
    """Those of images in tables."""

    train: str
    test: str
    image: str
    label: str


def read_hf_images(folder: Path, log: Log, **options: Unpack[TableOptions]) -> tuple[ImageFiles, ImageFiles]:
    """Return training and test images of a folder; columns `image` and `label` unless options name others."""
    check_pillow()
    chosen, image = reading(options), options.get("image", "image")
    splits = options.get("train", ""), options.get("test", "")
    train, test = read_tables(folder, splits, options.get("label", "label"), log)
    return _images(train, image, chosen, log), _images(test, image, chosen, log)


def _images(table: Table, column: str, how: Reading, log: Log) -> ImageFiles:
    datasets = optional_package("datasets", "huggingface", "hf-images")
    kind = table.rows.features[checked_column(table.rows, column)]
    if not isinstance(kind, datasets.Image):
        raise InputError(
            f"the column {column!r} (data.options.image) holds {kind}, expected images: cast it to Image()"
        )
    rows = table.rows.cast_column(column, datasets.Image(decode=False))  # our limits on pixels, and when it is needed
    names = [f"row {number}" for number in range(len(table))]
    return ImageFiles(names, table.classes, how, log, opened=Rows(rows, column))


HF_IMAGES = DataSpec(
    name="hf-images",
    title="images in a folder of Hugging Face datasets",
    input_shape=image_shape,
    read=read_hf_images,
    holds=holds_tables,
    hint="a folder that save_to_disk wrote, or with arrow or parquet files",
)
