"""All data sets by name. To add one: a file with its DataSpec, and its line here."""

from rigl_compress.models.registry import Registry
from rigl_compress.pipeline.train.data.cifar10 import CIFAR10
from rigl_compress.pipeline.train.data.dataset import DataSpec
from rigl_compress.pipeline.train.data.fashion_mnist import FASHION_MNIST, FASHION_MNIST_NPM
from rigl_compress.pipeline.train.data.mnist import MNIST
from rigl_compress.pipeline.train.data.mnist_5k import MNIST_5K

DATASETS = Registry[DataSpec]("data set")

for _spec in (MNIST, MNIST_5K, FASHION_MNIST, FASHION_MNIST_NPM, CIFAR10):
    DATASETS.register(_spec.name, _spec)
