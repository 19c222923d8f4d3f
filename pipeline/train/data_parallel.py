"""A network in several processes: gradients are averaged over them, and batch norm may see the whole batch."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from rigl_compress.core.random_generators import generator
from rigl_compress.data.samples import IGNORED
from rigl_compress.pipeline.train.process_group import World
from rigl_compress.sparsity.rank_agreement import average_gradients

Forward = Callable[[Tensor], Tensor]


def replicated(forward: Forward, model: nn.Module, example: Tensor, world: World) -> Forward:
    """Return a forward pass whose gradients are averaged over all processes; `forward` may be the compiled model.

    Batch-norm statistics of the network are those of rank 0: they are sent to the others before each forward pass.
    """
    if world.alone:
        return forward
    assert isinstance(forward, nn.Module)
    return DistributedDataParallel(forward, find_unused_parameters=_has_unused(model, example))


@contextmanager
def averaging(forward: Forward, last: bool, beside: Iterable[nn.Parameter]) -> Iterator[None]:
    """Average the gradients in the last backward pass of an optimizer step, and those of what is trained beside."""
    if not isinstance(forward, DistributedDataParallel):
        yield
    elif last:
        yield
        average_gradients(beside)  # before a gradient scaler looks at them
    else:
        with forward.no_sync():
            yield


def weighted(loss: Tensor, targets: Tensor, batch: int, world: World) -> Tensor:
    """Weight the mean loss of a part so that the mean over all processes is that of the whole batch.

    Parts differ by a sample where the batch does not divide, and in texts by the outputs that count.
    """
    if world.alone:
        return loss
    if targets.dim() == 1:
        return loss * (len(targets) * world.count / batch)
    counted = (targets != IGNORED).sum().to(loss.dtype)
    return loss * (counted / world.mean(counted).clamp_min(torch.finfo(loss.dtype).tiny))


def _has_unused(model: nn.Module, example: Tensor) -> bool:
    """Whether some trained parameters get no gradient: DistributedDataParallel then has to look for them."""
    training, trained = model.training, [each for each in model.parameters() if each.requires_grad]
    try:
        answers = model.eval()(example)
        return any(each is None for each in torch.autograd.grad(answers.sum(), trained, allow_unused=True))
    finally:
        model.train(training)


class _Sum(torch.autograd.Function):
    """Adds up tensors of all processes; so are their gradients."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        del ctx
        return _added(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        del ctx
        return _added(gradients[0])


def _added(values: Tensor) -> Tensor:
    summed = values.clone(memory_format=torch.contiguous_format)
    distributed.all_reduce(summed)
    return summed


def _sum(values: Tensor) -> Tensor:
    summed: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return summed


class WholeBatchNorm(_BatchNorm):
    """Batch norm over the parts of all processes, on any device; torch's own is for GPUs."""

    def _check_input_dim(self, input: Tensor) -> None:
        del input

    def forward(self, input: Tensor) -> Tensor:
        """Normalise by the statistics of the whole batch in training, by the running ones in evaluation."""
        if not self.training:
            return super().forward(input)
        axes = [axis for axis in range(input.dim()) if axis != 1]
        count = input.new_tensor(input.numel() / input.shape[1])
        first = _sum(torch.cat([input.sum(axes), count[None]]))
        total, mean = first[-1], first[:-1] / first[-1]
        shape = [1, -1, *([1] * (input.dim() - 2))]
        centred = input - mean.reshape(shape)
        variance = _sum(centred.square().sum(axes)) / total
        self._remember(mean.detach(), variance.detach() * (total / (total - 1)))
        scaled = centred * (variance + self.eps).rsqrt().reshape(shape)
        return scaled * self.weight.reshape(shape) + self.bias.reshape(shape) if self.affine else scaled

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        """Update the running statistics as torch's own batch norm does."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        share = self.momentum if self.momentum is not None else 1 / float(self.num_batches_tracked)
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def synchronise_batch_norm(model: nn.Module, world: World) -> None:
    """Let every batch norm see the batches of all processes; parameters, statistics and names stay."""
    for module in () if world.alone else batch_norms(model):
        module.own_kind = type(module)  # type: ignore[assignment]
        module.__class__ = nn.SyncBatchNorm if _on_gpu(module) else WholeBatchNorm
        module.process_group = None  # type: ignore[assignment]  # of torch's own: all processes


def localise_batch_norm(model: nn.Module) -> None:
    """Undo `synchronise_batch_norm`: the network is used by one process from now on."""
    for module in batch_norms(model):
        module.__class__ = getattr(module, "own_kind", type(module))


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch-norm layers of a network."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _on_gpu(module: nn.Module) -> bool:
    return any(each.device.type == "cuda" for each in (*module.parameters(), *module.buffers()))


def draw_own_noise(world: World, seed: int, iteration: int) -> None:
    """Let dropout draw other numbers in each process, the same again when a run is resumed."""
    if not world.alone:
        torch.manual_seed(generator(seed, iteration, f"noise of rank {world.rank}").initial_seed())
