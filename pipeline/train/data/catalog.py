"""All data sets by name. To add one: a file with its DataSpec, and its line here."""

from rigl_compress.models.registry import Registry
from rigl_compress.pipeline.train.data.cifar10 import CIFAR10
from rigl_compress.pipeline.train.data.corpora import TEXT, TINY_SHAKESPEARE, WIKITEXT103
from rigl_compress.pipeline.train.data.dataset import DataSpec
from rigl_compress.pipeline.train.data.fashion_mnist import FASHION_MNIST, FASHION_MNIST_NPM
from rigl_compress.pipeline.train.data.image_folder import IMAGE_FOLDER, IMAGENET
from rigl_compress.pipeline.train.data.mnist import MNIST
from rigl_compress.pipeline.train.data.mnist_5k import MNIST_5K

DATASETS = Registry[DataSpec]("data set")

_IMAGES = (MNIST, MNIST_5K, FASHION_MNIST, FASHION_MNIST_NPM, CIFAR10, IMAGENET, IMAGE_FOLDER)
_TEXTS = (WIKITEXT103, TINY_SHAKESPEARE, TEXT)

for _spec in (*_IMAGES, *_TEXTS):
    DATASETS.register(_spec.name, _spec)
