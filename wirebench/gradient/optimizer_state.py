"""The whole state of an optimizer, whichever it is, kept by the names of the layers it belongs to."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from wirebench.errors import UserError
from wirebench.gradient.flat import FlatGradient

PARAMETERS = "params"


class OptimizerState:
    """`state_dict` and `load_state_dict` of one replica's optimizer.

    It is the optimizer's own state_dict with layer names in place of numbers, so it fits however the parameters are
    grouped. Make it before the first step: it keeps the parameter groups as the config has set them. A resumed run may
    have another config, and what that changes stays; every other value of a group is restored.
    """

    def __init__(self, optimizer: Optimizer, flat: FlatGradient) -> None:
        self.optimizer = optimizer
        self._names = {p: layer.name for p, layer in zip(flat.parameters, flat.layers, strict=True)}
        self._configured = copy.deepcopy(self._groups(optimizer.state_dict()))

    def state_dict(self) -> dict[str, Any]:
        """Everything that the optimizer's state_dict has, and `configured`, the parameter groups before any step."""
        whole, names = self.optimizer.state_dict(), self._by_number()
        state = {names.get(key, key): value for key, value in whole["state"].items()}
        return {**whole, "state": state, "param_groups": self._groups(whole), "configured": self._configured}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; the tensors are copied. UserError for another kind of optimizer's."""
        self._refuse_another(saved["configured"])
        whole = copy.deepcopy(dict(saved))
        numbers = {name: number for number, name in self._by_number().items()}
        before, after = whole.pop("configured"), whole["param_groups"]
        groups = self.optimizer.state_dict()["param_groups"]
        if [each[PARAMETERS] for each in after] == [each[PARAMETERS] for each in self._configured]:
            for group, mine, was, now in zip(groups, self._configured, before, after, strict=True):
                kept = (key for key in now if key != PARAMETERS and _same(mine.get(key), was.get(key)))
                group.update({key: now[key] for key in kept})
        state = {numbers.get(key, key): value for key, value in whole["state"].items()}
        self.optimizer.load_state_dict({**whole, "state": state, "param_groups": groups})
        restore_strides(self.optimizer)

    def _refuse_another(self, configured: Sequence[Mapping[str, Any]]) -> None:
        """Another PyTorch gives a kind of optimizer more settings or fewer; another kind has other ones."""
        theirs, mine = ({frozenset(group) for group in groups} for groups in (configured, self._configured))
        pairs = ((theirs, mine), (mine, theirs))
        if not all(any(a <= b or b <= a for b in others) for these, others in pairs for a in these):
            raise UserError(
                f"the checkpoint has the state of another optimizer than {type(self.optimizer).__name__}; go on with "
                "the one that it was saved with (of train.py: optimizer.name), or start anew in another folder"
            )

    def _groups(self, whole: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer's state_dict, with layer names in them."""
        names = self._by_number()
        return [{**group, PARAMETERS: [names[n] for n in group[PARAMETERS]]} for group in whole["param_groups"]]

    def _by_number(self) -> dict[Any, str]:
        """Layer names by the numbers that the optimizer's state_dict gives its parameters."""
        numbered = self.optimizer.state_dict()["param_groups"]
        pairs = zip(self.optimizer.param_groups, numbered, strict=True)
        return {
            number: self._names[parameter]
            for group, numbers in pairs
            for parameter, number in zip(group[PARAMETERS], numbers[PARAMETERS], strict=True)
        }


def restore_strides(optimizer: Optimizer) -> None:
    """Give loaded state the strides of its parameter, which fused updates rely on.

    The run that saved it may have had another memory format, and a file keeps none.
    """
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            shaped = isinstance(value, Tensor) and value.shape == parameter.shape
            if shaped and value.stride() != parameter.stride():
                state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.cpu(), other.cpu())
    return not isinstance(one, Tensor) and not isinstance(other, Tensor) and bool(one == other)
