"""PyTorch's optimizers without what is there for torch.compile, which nothing here compiles an optimizer with.

Their methods are wrapped so that the compiler does not look into them, and the wrappers import the whole compiler when
they are first called: a second and more of a core, on every rank, whenever a run starts or goes on.
"""

import inspect
from typing import TypeVar

import torch
from torch.optim import Optimizer

WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")
Kind = TypeVar("Kind", bound=type[Optimizer])


def uncompiled(kind: Kind) -> Kind:
    """The class of the same name and behaviour whose methods are those below the wrappers."""
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in WRAPPED}
    # The wrapper of `step` also turns gradients off.
    methods["step"] = torch.no_grad()(inspect.unwrap(kind.step))
    made = type(kind.__name__, (kind,), {**methods, "__doc__": kind.__doc__, "__module__": kind.__module__})
    return made  # type: ignore[return-value]
