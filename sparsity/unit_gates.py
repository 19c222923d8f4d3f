"""The gates of a network in training: the only code of structured methods that touches modules and the optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rigl_compress.models.topology import connections
from rigl_compress.sparsity.gate_sites import Site, sites_of
from rigl_compress.sparsity.rank_agreement import rows_of_rank
from rigl_compress.sparsity.structured_methods import Gating, Units


class Gates:
    """Multiplies the units of a network by gates while it is trained.

    Before `search` all gates are 1. While searching they are noisy or penalised, as the method has it. `choose` ends
    the search. `fold` multiplies the gates into the weights, and the network is a plain one again.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        gating: Gating,
        options: Mapping[str, float],
        strengths: Mapping[str, float] | None = None,
    ) -> None:
        """Place gates at every site of the network, and add what they learn to the optimizer.

        `strengths` are factors of the strength of the penalty, by the name of a weight.
        """
        self.gating = gating
        self.sites = sites_of(model)
        self.options = {
            site.name: {**options, "strength": options.get("strength", 0.0) * (strengths or {}).get(site.name, 1.0)}
            for site in self.sites
        }
        device = self.sites[0].layer.weight.device
        self.learned = [self._start(site, device) for site in self.sites]
        self.fixed = [torch.ones(site.size, device=device) for site in self.sites]  # the gates once they are chosen
        self.searching = self.chosen = False
        if own := list(self.parameters().values()):
            rate = options.get("rate", 1.0)
            group = {"params": own, "weight_decay": 0.0, "rate": rate, "lr": rate * optimizer.param_groups[0]["lr"]}
            optimizer.add_param_group(group)
        self._hooks = [self._attach(index) for index in range(len(self.sites))]

    # The loss

    def penalty(self) -> Tensor | float:
        """Return what the method adds to the loss."""
        if not self.searching or self.gating.penalty is None:
            return 0.0
        return torch.stack([self.gating.penalty(self._units(index)) for index in range(len(self.sites))]).sum()

    # The phases

    def search(self) -> None:
        """Start the search for the units that matter."""
        self.searching = not self.chosen

    @torch.no_grad()
    def constrain(self, rate: float) -> None:
        """Apply the method's constraint after a step of the optimizer."""
        if self.searching and self.gating.constrain is not None:
            for index in range(len(self.sites)):
                self.gating.constrain(self._units(index), rate)

    @torch.no_grad()
    def choose(self, densities: Mapping[str, float], density: float) -> int | None:
        """End the search: close the gates of the units that matter least. Return their number.

        None: a score is not finite, and nothing was chosen.
        """
        scores = [self.gating.score(self._units(index)) for index in range(len(self.sites))]
        if not all(score.isfinite().all() for score in scores):
            return None
        if self.gating.chooses == "network" and not densities:
            bar = _smallest_kept(torch.cat(scores), density)
            kept = [score >= bar for score in scores]
        elif self.gating.chooses == "all":
            kept = [score > 0 for score in scores]
        else:
            shares = [densities.get(site.name, density) for site in self.sites]
            kept = [score >= _smallest_kept(score, share) for score, share in zip(scores, shares, strict=True)]
        for index, (keep, score) in enumerate(zip(kept, scores, strict=True)):
            self.fixed[index] = _never_empty(self.values(index) * keep, score)
        self.searching, self.chosen = False, True
        return int(sum((gates == 0).sum() for gates in self.fixed))

    @torch.no_grad()
    def fold(self) -> None:
        """Multiply the chosen gates into the weights and remove them."""
        for site, gates in zip(self.sites, self.fixed, strict=True):
            site.fold(gates)
        for hook in self._hooks:
            hook.remove()

    # State

    @torch.no_grad()
    def values(self, index: int) -> Tensor:
        """Return the gates of a site as they are without noise."""
        if self.searching and self.gating.value is not None and not self._in_norm(index):
            return self.gating.value(self._units(index)).detach()
        return self.fixed[index]

    def masks(self) -> dict[str, Tensor]:
        """Return the mask of each weight: true where its unit has an open gate."""
        masks = {}
        for index, site in enumerate(self.sites):
            is_open = self.values(index) != 0
            weight = site.layer.weight
            rows = (1, -1) if site.of_inputs else (-1, *([1] * (weight.dim() - 1)))
            masks[site.name] = is_open.reshape(rows).expand(weight.shape).clone()
        return masks

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return what is learned beside the weights, by name."""
        return {
            f"{site.name}/{key}": parameter
            for site, each in zip(self.sites, self.learned, strict=True)
            for key, parameter in each.items()
            if site.norm is None or parameter is not site.norm.weight
        }

    def state_dict(self) -> dict[str, Any]:
        """Return everything needed to resume."""
        tensors = {name: parameter.detach().clone() for name, parameter in self.parameters().items()}
        tensors |= {f"{site.name}/gates": gates.clone() for site, gates in zip(self.sites, self.fixed, strict=True)}
        return {"tensors": tensors, "searching": self.searching, "chosen": self.chosen}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, parameter in self.parameters().items():
            parameter.copy_(state["tensors"][name])
        for site, gates in zip(self.sites, self.fixed, strict=True):
            gates.copy_(state["tensors"][f"{site.name}/gates"])
        self.searching, self.chosen = state["searching"], state["chosen"]

    # Inside

    def _start(self, site: Site, device: torch.device) -> dict[str, nn.Parameter]:
        if self.gating.learn is None:
            return {}
        numbers = self.gating.learn(Units(site.size, site.first, {}, site.weights, self.options[site.name]))
        if site.norm is not None and "scale" in numbers:
            return {"scale": site.norm.weight}
        return {key: nn.Parameter(value.to(device)) for key, value in numbers.items()}

    def _units(self, index: int) -> Units:
        site = self.sites[index]
        return Units(site.size, site.first, self.learned[index], site.weights, self.options[site.name])

    def _attach(self, index: int) -> torch.utils.hooks.RemovableHandle:
        site = self.sites[index]
        if site.of_inputs:
            return site.gated.register_forward_pre_hook(lambda _, inputs: (self._gate(index, inputs[0]), *inputs[1:]))
        return site.gated.register_forward_hook(lambda *call: self._gate(index, call[2]))

    def _gate(self, index: int, x: Tensor) -> Tensor:
        site, gating = self.sites[index], self.gating
        if self.chosen:
            return x * site.broadcast(self.fixed[index])
        if not self.searching or gating.value is None or self._in_norm(index):
            return x
        if gating.noisy is None or not site.gated.training:
            return x * site.broadcast(gating.value(self._units(index)))
        samples = x.numel() // x.shape[-1] if site.of_inputs else len(x)
        rows, own = rows_of_rank(samples)
        gates = site.broadcast(gating.noisy(self._units(index), rows)[own])
        return x * (gates.reshape(x.shape) if site.of_inputs else gates)

    def _in_norm(self, index: int) -> bool:
        """Whether the factors of batch normalisation are the gates: they act by themselves."""
        return self.sites[index].norm is not None and "scale" in self.learned[index]


def _smallest_kept(scores: Tensor, density: float) -> Tensor:
    """Return the score of the last unit that is kept."""
    return scores.sort(descending=True).values[max(1, connections(density, len(scores))) - 1]


def _never_empty(gates: Tensor, score: Tensor) -> Tensor:
    """Open the best gate of a layer that has none left: without any the output would be constant."""
    if not gates.any():
        gates[score.argmax()] = 1
    return gates
