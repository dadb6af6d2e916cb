"""Optimizers, all but Dion2 PyTorch's, as a config asks for them."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from wirebench.config.loader import OptimizerConfig
from wirebench.errors import UserError
from wirebench.gradient.optimizer_state import restore_strides
from wirebench.training.optimizers.muon import MuonWithAdamW, matrices_of
from wirebench.training.optimizers.uncompiled import uncompiled


def build_optimizer(model: nn.Module, section: OptimizerConfig) -> Optimizer:
    """The optimizer over the trainable parameters of `model`, with the rate section.lr until one is applied.

    With decay_norm = false, parameters of at most one dimension form a second group without weight decay. The update
    is the fused one, a single pass over the memory. It takes parameter, gradient and momentum in the order in which
    they lie in memory, so a gradient must have its parameter's strides, as autograd and `FlatGradient` see to.
    Raises UserError for settings that do not go together.
    """
    _check(section)
    optimizer = _build(model, section)
    optimizer.register_load_state_dict_post_hook(restore_strides)
    return optimizer


def _build(model: nn.Module, section: OptimizerConfig) -> Optimizer:
    trainable = [p for p in model.parameters() if p.requires_grad]
    if section.name == "sgd":
        groups = _groups(trainable, section)
        return uncompiled(SGD)(groups, lr=section.lr, momentum=section.momentum, nesterov=section.nesterov, fused=True)
    if section.name == "adamw":
        groups, betas = _groups(trainable, section), (section.momentum, section.beta2)
        return uncompiled(AdamW)(groups, lr=section.lr, betas=betas, eps=section.eps, fused=True)
    matrices = matrices_of(model)
    mine = set(map(id, matrices))
    return MuonWithAdamW(
        _groups(matrices, section), _groups([p for p in trainable if id(p) not in mine], section),
        name=section.name, lr=section.lr, momentum=section.momentum, nesterov=section.nesterov, beta2=section.beta2,
        eps=section.eps, fraction=section.fraction,
    )  # fmt: skip


def _groups(parameters: Sequence[Tensor], section: OptimizerConfig) -> list[dict[str, Any]]:
    """With weight decay, and without."""
    decayed = [p for p in parameters if section.decay_norm or p.ndim > 1]
    exempt = [p for p in parameters if not section.decay_norm and p.ndim <= 1]
    parts = ((decayed, section.weight_decay), (exempt, 0.0))
    return [{"params": some, "weight_decay": weight_decay} for some, weight_decay in parts if some]


def _check(section: OptimizerConfig) -> None:
    if section.name in ("adamw", "dion2") and section.nesterov:
        raise UserError(f"optimizer.nesterov: goes with sgd and muon, not with {section.name}")
    if section.name == "sgd" and (section.beta2, section.eps) != (OptimizerConfig.beta2, OptimizerConfig.eps):
        raise UserError("optimizer.beta2, optimizer.eps: belong to adamw, muon and dion2; sgd has none")
    if section.name != "dion2" and section.fraction != OptimizerConfig.fraction:
        raise UserError(f"optimizer.fraction: goes with dion2, not with {section.name}")
    if not 0 < section.fraction <= 1:
        raise UserError(f"optimizer.fraction: lies in (0, 1], got {section.fraction:g}")
    if section.name != "sgd" and not (section.momentum < 1 and section.beta2 < 1):
        raise UserError(f"optimizer.momentum, optimizer.beta2: lie in [0, 1) with {section.name}")
    if section.nesterov and section.momentum == 0:
        raise UserError("optimizer.nesterov: Nesterov momentum needs optimizer.momentum above 0")
    if section.schedule == "step" and not section.milestones:
        raise UserError(
            "optimizer.milestones: schedule = 'step' needs the epochs at which the rate falls, e.g. [80, 120]"
        )
    if section.schedule != "step" and (section.milestones or section.gamma != OptimizerConfig.gamma):
        raise UserError(f"optimizer.schedule: {section.schedule!r} takes no milestones and no gamma; only 'step' does")
