"""All data sets by name. To add one to the package: a file with its DataSpec, and its line here."""

from collections.abc import Callable
from typing import Any

from rigl_compress.core.errors import InputError
from rigl_compress.core.registry import Registry
from rigl_compress.data.cifar10 import CIFAR10
from rigl_compress.data.custom_datasets import CustomDataSet, custom_dataset
from rigl_compress.data.dataset import DataSet, DataSpec
from rigl_compress.data.fashion_mnist import FASHION_MNIST
from rigl_compress.data.huggingface_images import HF_IMAGES
from rigl_compress.data.huggingface_texts import HF_TEXTS
from rigl_compress.data.image_folder import IMAGE_FOLDER, IMAGENET
from rigl_compress.data.mnist import MNIST
from rigl_compress.data.mnist_5k import MNIST_5K
from rigl_compress.data.tar_shards import IMAGE_SHARDS
from rigl_compress.data.text_corpora import MASKED_TEXT, TEXT, TINY_SHAKESPEARE, WIKITEXT103

Make = Callable[..., DataSet]


def _as_dataset(name: str, found: Any) -> DataSpec | CustomDataSet:
    return found if isinstance(found, DataSpec | CustomDataSet) else custom_dataset(name, found)


DATASETS: Registry[DataSpec | CustomDataSet] = Registry("data set", group="rigl_compress.datasets", adapt=_as_dataset)

_IMAGES = (MNIST, MNIST_5K, FASHION_MNIST, CIFAR10, IMAGENET, IMAGE_FOLDER, IMAGE_SHARDS, HF_IMAGES)
_TEXTS = (WIKITEXT103, TINY_SHAKESPEARE, TEXT, MASKED_TEXT, HF_TEXTS)

for _spec in (*_IMAGES, *_TEXTS):
    DATASETS.register(_spec.name, _spec)


def register_dataset(name: str) -> Callable[[Make], Make]:
    """Return a decorator that registers a function which makes a data set; its parameters are options of a recipe."""
    return DATASETS.register(name)


def published(name: str) -> DataSpec:
    """Return a data set that consists of files; raise for one that a function makes."""
    found = DATASETS[name]
    if isinstance(found, CustomDataSet):
        raise InputError(f"data set {name!r} is made by {found.origin}: it has no files to fetch or look for")
    return found
