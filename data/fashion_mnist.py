"""Fashion-MNIST: 70,000 pictures of clothes in the format of MNIST (Zalando Research, MIT)."""

from dataclasses import replace

from rigl_compress.data.download_sources import mirror
from rigl_compress.data.mnist import MNIST, idx_files

FASHION_MNIST = replace(
    MNIST,
    name="fashion-mnist",
    title="70,000 pictures of clothes",
    files=idx_files(
        (
            "f4a8712d7a061bf5bd6d2ca38dc4d50a",
            "9018921c3c673c538a1fc5bad174d6f9",
            "8181f5470baa50b63fa0f6fddb340f0a",
            "15d484375f8d13e6eb1aabb0c3f46965",
        ),
        (
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
    ),
    sources=(
        mirror("https://storage.googleapis.com/tensorflow/tf-keras-datasets/"),
        mirror("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/"),
    ),
    fallback="",
)
