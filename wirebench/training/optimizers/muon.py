"""Muon or Dion2 for the matrices, AdamW for everything else, as one optimizer."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer, _muon
from torch.overrides import TorchFunctionMode

from wirebench.errors import UserError

COEFFICIENTS, ITERATIONS, EPS = (3.4445, -4.7750, 2.0315), 5, 1e-7
"""Of the Newton-Schulz iteration, as PyTorch's Muon has them by default."""
MATCH_ADAMW = "match_rms_adamw"
"""How rates are scaled so that an update has AdamW's root mean square."""


def matrices_of(model: nn.Module) -> list[Tensor]:
    """The trainable weights of `model` that Muon is made for: of linear layers inside it, neither embeddings nor head.

    The head is the last linear layer (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon).
    """
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    return [
        module.weight for module in linear[:-1] if module.weight.requires_grad and id(module.weight) not in embedded
    ]


class _KeepsFp32(TorchFunctionMode):
    """Within it a tensor on the CPU that is to become bf16 becomes fp32.

    PyTorch's Muon multiplies matrices in bf16, which a CPU without instructions for it does ten times as slowly.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        on_cpu = bool(args) and isinstance(args[0], Tensor) and args[0].device.type == "cpu"
        if on_cpu and func is Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)
        if on_cpu and func is Tensor.to and given.get("dtype") is torch.bfloat16:
            given["dtype"] = torch.float32
        return func(*args, **given)


class Dion2(Optimizer):
    """Muon's update for a share of each matrix (Ahn et al. 2025, "Dion2", arXiv 2512.16928).

    A step adds the gradient to the momentum, takes the rows of the largest sums of magnitudes, makes the matrix of
    these rows orthonormal as Muon does, and updates these rows of the weight alone. Only their momentum decays; the
    momentum of the other rows is their error feedback. Columns take the place of rows in a matrix with fewer columns.

    momentum  decay of the selected rows' momentum, the paper's mu
    fraction  of a matrix's rows that a step updates, rounded up; the authors' default is a quarter
    """

    def __init__(self, matrices: Sequence[dict[str, Any]], lr: float, momentum: float, fraction: float) -> None:
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        self._fraction = fraction

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient; takes no closure."""
        assert closure is None
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, group)

    def _update(self, weight: Tensor, group: dict[str, Any]) -> None:
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        momentum = state["momentum_buffer"]
        momentum.add_(weight.grad)
        dim = 0 if weight.shape[0] <= weight.shape[1] else 1
        count = math.ceil(self._fraction * weight.shape[dim])
        chosen = momentum.abs().sum(dim=1 - dim).topk(count).indices
        rows = momentum.index_select(dim, chosen)
        momentum.index_copy_(dim, chosen, group["momentum"] * rows)
        orthonormal = _muon._zeropower_via_newtonschulz(rows, COEFFICIENTS, ITERATIONS, EPS).to(weight.dtype)
        rate = _muon._adjust_lr(group["lr"], MATCH_ADAMW, weight.shape)
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.index_add_(dim, chosen, orthonormal, alpha=-rate)


class MuonWithAdamW(Optimizer):
    """PyTorch's Muon, or Dion2, over some groups and its AdamW over the others.

    Their updates have the same root mean square; of Dion2 that holds for the updated rows. On a CPU, matrices are made
    orthonormal in fp32, elsewhere in bf16, as PyTorch's Muon does everywhere.

    matrices, others  parameter groups
    fraction          Dion2's
    """

    def __init__(
        self, matrices: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], *, name: str, lr: float,
        momentum: float, nesterov: bool, beta2: float, eps: float, fraction: float,
    ) -> None:  # fmt: skip
        if not matrices:
            raise UserError(f"optimizer.name: {name!r} is for models with linear layers inside, and this one has none")
        parts: list[Optimizer] = [
            Dion2(matrices, lr, momentum, fraction)
            if name == "dion2"
            else Muon(matrices, lr=lr, momentum=momentum, nesterov=nesterov, adjust_lr_fn=MATCH_ADAMW)
        ]
        if others:
            parts.append(AdamW(others, lr=lr, betas=(momentum, beta2), eps=eps, fused=True))
        self._parts = parts
        self._sizes = [len(part.param_groups) for part in parts]
        super().__init__([group for part in parts for group in part.param_groups], {})
        self._link()
        self.register_load_state_dict_post_hook(lambda _: self._link())

    def _link(self) -> None:
        """The parts step what this optimizer shows and saves: the same groups, the same state."""
        first = 0
        for part, size in zip(self._parts, self._sizes, strict=True):
            part.param_groups = self.param_groups[first : first + size]
            part.state = self.state
            first += size

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient; takes no closure."""
        assert closure is None
        orthonormal, *others = self._parts
        with _KeepsFp32():
            orthonormal.step()
        for part in others:
            part.step()
