"""Several processes that train one network must choose the same connections."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from torch import distributed

from rigl_compress.core.errors import InputError
from rigl_compress.sparsity.layer_state import Layer
from rigl_compress.sparsity.rank_agreement import is_distributed


def check_replicas(layers: Sequence[Layer], seed: int) -> bool:
    """Return whether the processes of the default group train one network; False outside of torch.distributed.

    Raises where its seeds or topologies differ. Processes whose networks differ train them apart and may choose freely.
    """
    if not is_distributed():
        return False
    own = (_digest([_network(layers)]), seed, _digest(_topology(layers)))
    found: list[tuple[str, int, str]] = [own] * distributed.get_world_size()
    distributed.all_gather_object(found, own)
    networks, seeds, topologies = (set(each) for each in zip(*found, strict=True))
    if len(networks) > 1:
        return False
    if len(seeds) > 1:
        raise InputError(f"the processes have seeds {sorted(seeds)}: pass the same seed to every Sparsifier")
    if len(topologies) > 1:
        raise InputError(
            "the processes start from different topologies: pass the same to all, or build the Sparsifier after "
            "DistributedDataParallel has made the weights alike"
        )
    return True


def _network(layers: Sequence[Layer]) -> bytes:
    return repr([(layer.name, tuple(layer.shape)) for layer in layers]).encode()


def _topology(layers: Sequence[Layer]) -> Iterator[bytes]:
    return (layer.positions.cpu().numpy().tobytes() for layer in layers)


def _digest(parts: Iterable[bytes]) -> str:
    digest = blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()
