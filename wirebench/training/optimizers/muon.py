"""Muon for the matrices, AdamW for everything else, as one optimizer."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer
from torch.overrides import TorchFunctionMode

from wirebench.errors import UserError


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


class MuonWithAdamW(Optimizer):
    """PyTorch's Muon over some groups and its AdamW over the others; their updates have the same root mean square.

    On a CPU, matrices are made orthonormal in fp32, elsewhere in bf16, as PyTorch's Muon does everywhere.

    matrices, others  parameter groups
    """

    def __init__(
        self, matrices: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], *, lr: float, momentum: float,
        nesterov: bool, beta2: float, eps: float,
    ) -> None:  # fmt: skip
        if not matrices:
            raise UserError("optimizer.name: 'muon' is for models with linear layers inside, and this one has none")
        muon = Muon(matrices, lr=lr, momentum=momentum, nesterov=nesterov, adjust_lr_fn="match_rms_adamw")
        parts: list[Optimizer] = [muon]
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
        muon, *others = self._parts
        with _KeepsFp32():
            muon.step()
        for part in others:
            part.step()
