"""PyTorch's optimizers without their wrappers for torch.compile, since the suite compiles no optimizer.

PyTorch wraps their methods so that the compiler does not look into them. The wrappers import the whole compiler when
they are first called. That takes a second or more of a core, on every rank, whenever a run starts or resumes.
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
