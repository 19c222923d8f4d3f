"""One of two processes that train one network together; sparsity/test_replica_check.py runs it as a script."""

import gc
import json
import sys
import warnings
from contextlib import nullcontext
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import rigl_compress as rc
from rigl_compress.pipeline.train.data_parallel import localise_batch_norm, synchronise_batch_norm
from rigl_compress.pipeline.train.process_group import World


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 4))


def sparsifier(model: nn.Module, **settings: object) -> rc.Sparsifier:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return rc.Sparsifier(model, optimizer, sparsity=0.7, total_steps=40, interval=3, **settings)  # type: ignore[arg-type]


def refusal(model: nn.Module, **settings: object) -> str:
    try:
        sparsifier(model, **settings)
    except rc.InputError as error:
        return str(error)
    return ""


def trained(rank: int, method: str, automatic: bool = False) -> str:
    """Train with data of one's own; gives the connections in the end."""
    torch.manual_seed(rank)  # weights that DistributedDataParallel makes alike
    model = DistributedDataParallel(network())
    sparse = sparsifier(model, method=method, automatic=automatic)
    for step in range(12):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(2 * step + rank))
        F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
        if automatic or not sparse.step():
            sparse.optimizer.step()
        sparse.optimizer.zero_grad()
    return repr([mask.nonzero().tolist() for mask in sparse.topology.values()])


def in_loop(rank: int, method: str = "rigl", accumulate: int = 1, **settings: Any) -> str:
    """Train in a loop with accumulation, and other settings of DistributedDataParallel; gives the connections."""
    torch.manual_seed(0)
    model = network()
    wrapped = DistributedDataParallel(compiled(model) if settings.pop("compiled", False) else model, **settings)
    sparse = sparsifier(model, method=method)
    for step in range(12 * accumulate):
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(2 * step + rank))
        last = (step + 1) % accumulate == 0
        with nullcontext() if last else wrapped.no_sync():
            (F.cross_entropy(wrapped(x), x[:, :4].argmax(1)) + sparse.penalty()).backward()
        if last and not sparse.step():
            sparse.optimizer.step()
        if last:
            sparse.optimizer.zero_grad()
    gates = [parameter.tolist() for parameter in sparse.updater.parameters.values()]
    return repr([[mask.nonzero().tolist() for mask in sparse.topology.values()], gates])


def overflowed(rank: int, method: str) -> str:
    """Train in scaled float16 with gradients that overflow in rank 1 alone, also where an update is due."""
    torch.manual_seed(0)
    model = DistributedDataParallel(network())
    sparse = sparsifier(model, method=method)
    scaler, kept = torch.amp.GradScaler("cpu", init_scale=2.0**4), True
    for step in range(14):
        overflows, before = step in (0, 3, 4, 9), sparse.topology
        x = torch.randn(16, 12, generator=torch.Generator().manual_seed(2 * step + rank))
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x), x[:, :4].argmax(1))
        scaler.scale(loss * (torch.inf if rank and overflows else 1.0)).backward()
        scaler.unscale_(sparse.optimizer)
        if not sparse.step():
            scaler.step(sparse.optimizer)
        scaler.update()
        sparse.optimizer.zero_grad()
        kept &= not overflows or sparse.topology == before
    remembered = [value for memory in sparse.state_dict()["memory"].values() for value in memory.values()]
    finite = all(value.isfinite().all() for value in (*model.parameters(), *remembered))
    connections = [mask.nonzero().tolist() for mask in sparse.topology.values()]
    return repr([connections, finite, kept, sparse.updates > 0, scaler.get_scale()])


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="aot_eager")  # type: ignore[return-value]


def apart(rank: int) -> str:
    """Train without averaging gradients: the connections drift apart."""
    torch.manual_seed(0)
    sparse = sparsifier(model := network(), method="rigl")
    try:
        for step in range(12):
            x = torch.randn(16, 12, generator=torch.Generator().manual_seed(2 * step + rank))
            F.cross_entropy(model(x), x[:, :4].argmax(1)).backward()
            if not sparse.step():
                sparse.optimizer.step()
            sparse.optimizer.zero_grad()
    except rc.InputError as error:
        return str(error)
    return ""


def batch_norm(rank: int) -> str:
    """Compare batch norm over two processes with that of one on the whole batch; gives what differs."""
    torch.manual_seed(0)
    whole, part = nn.BatchNorm2d(3), nn.Sequential(nn.BatchNorm2d(3))
    synchronise_batch_norm(part, World(rank, 2))
    x, factor = torch.randn(2, 6, 3, 2, 2)
    rows = slice(3 * rank, 3 * rank + 3)
    given, own = x.clone().requires_grad_(), x[rows].clone().requires_grad_()
    found, expected = part(own), whole(given)
    (found * factor[rows]).sum().backward()
    (expected * factor).sum().backward()
    summed = part[0].weight.grad.clone()
    distributed.all_reduce(summed)
    pairs = {"outputs": (found, expected[rows]), "gradients": (own.grad, given.grad[rows])}
    pairs |= {"weights": (summed, whole.weight.grad), "means": (part[0].running_mean, whole.running_mean)}
    pairs |= {"variances": (part[0].running_var, whole.running_var)}
    localise_batch_norm(part)
    kinds = [] if type(part[0]) is nn.BatchNorm2d else ["kind"]
    return repr(kinds + [name for name, (one, other) in pairs.items() if not torch.allclose(one, other, atol=1e-6)])


def sharded() -> str:
    """What FSDP2 is told."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return refusal(fully_shard(network(), mesh=init_device_mesh("cpu", (2,))), method="rigl")


def main(rank: int, store: str) -> None:
    warnings.simplefilter("error")
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.manual_seed(0)
    same = network()
    torch.manual_seed(rank)
    mine = network()
    found = {
        "seeds": refusal(same, seed=rank),
        "topologies": refusal(mine, method="dnw"),
        "alike": refusal(same, method="dnw"),
        "apart": refusal(nn.Linear(4 + rank, 3), seed=rank),
        **{method: trained(rank, method) for method in ("rigl", "set", "dnw")},
        "automatic": trained(rank, "rigl", automatic=True),
        "plain": in_loop(rank),
        "accumulated": in_loop(rank, accumulate=2),
        "buckets": in_loop(rank, bucket_cap_mb=0.0005, gradient_as_bucket_view=True),
        "static graph": in_loop(rank, static_graph=True),
        "gates": in_loop(rank, method="l0", accumulate=2),
        **{f"overflow {method}": overflowed(rank, method) for method in ("rigl", "snfs", "snip", "dnw")},
        "not averaged": apart(rank),
        "batch norm": batch_norm(rank),
        "sharded": sharded(),
    }
    print(json.dumps(found), flush=True)
    end()


def main_compiled(rank: int, store: str) -> None:
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    print(json.dumps({"compiled": in_loop(rank, compiled=True), "plain": in_loop(rank)}), flush=True)
    end()


def end() -> None:
    """Join the threads of gloo while Python still runs: one that outlives it ends the process with SIGABRT."""
    gc.collect()  # a replica holds its group, and with it the threads
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    (main_compiled if "compiled" in sys.argv else main)(int(sys.argv[1]), sys.argv[2])
