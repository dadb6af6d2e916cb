"""Wrong uses of `synchronise` that would silently let ranks drift apart: each raises an error of one line instead."""

import functools
import inspect
import sys
import weakref
from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.weak import WeakIdKeyDictionary

from wirebench import collectives
from wirebench.collectives.plan import Collective
from wirebench.dropin.overflow import remembers
from wirebench.errors import UserError
from wirebench.exchange.driver import Parts, refuse_wire
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.conformance import method_of, name_of, unwrapped
from wirebench.gradient.contract import Compressor, Method
from wirebench.utils.hooks import WeakHook

_users = WeakIdKeyDictionary()
"""Compressors that remember earlier steps, each with what exchanges a model's gradients by it."""
_held = WeakIdKeyDictionary()
"""Parameters whose gradients a `synchronise` of this process averages."""
_LEARNS = attrgetter("requires_grad")
_MAKER, _METHOD = "made_by", "method"
AGAIN = "close() it, and call synchronise again with the changed model"
CHANGED = (
    "sync: a gradient was changed after backward() and before it was averaged; call sync.wait() in between, or "
    "sync.step(optimizer) at once where the schedule updates the model itself"
)
EARLY = (
    "optimizer.step() before the gradients are averaged: call sync.step(optimizer) in its place, "
    "or sync.wait() before it"
)


def refuse_names(**parts: object) -> None:
    """UserError for a part that is given by its name, its class or its module, and for a schedule in the compressor's
    place: objects go in, in this order.
    """
    for kind, part in parts.items():
        if kind == "compressor" and isinstance(part, Scheduler):
            raise UserError(f"compressor: this is the schedule {type(part).__name__}; pass the compressor before it")
        made = f"{kind}: pass an object, as {kind}s.build(...) makes one"
        if isinstance(part, str | type | ModuleType):
            name = part if isinstance(part, str) else part.__name__
            raise UserError(f"{made}; this is the {_word(part)} {name!r}")
        if isinstance(part, FunctionType) or (kind == "compressor" and part is None):
            raise UserError(f"{made}; not a {type(part).__name__}")


def _word(part: object) -> str:
    return "name" if isinstance(part, str) else "class" if isinstance(part, type) else "module"


def refuse_used(compressor: Method) -> None:
    """UserError for a compressor that remembers another model's steps: what it keeps is one model's."""
    user = _users.get(unwrapped(compressor))
    if user is not None and user() is not None:
        raise UserError(
            f"compressor: this {name_of(compressor)!r} object compresses another model's gradients already; build one "
            "for each model"
        )


def use(compressor: Method, user: object) -> Callable[[], object]:
    """Refuse the compressor to others from now on, while `user` lives; returns what ends that."""
    inner = unwrapped(compressor)
    if remembers(compressor):
        _users[inner] = weakref.ref(user)
    return lambda: _users.pop(inner, None)


def method_and_collective(
    compressor: Compressor, collective: str | Collective, scaler: object, usual: str = "native"
) -> tuple[Method, Collective]:
    """The compressor with all members, and the collective; UserError where a part is of another kind, or does not fit.

    usual  name of the collective where neither the caller nor the compressor's paper names one
    """
    if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
        raise UserError(f"scaler: must be a torch.amp.GradScaler, not a {type(scaler).__name__}")
    if not isinstance(collective, str) and not hasattr(collective, "plan"):
        kind = type(collective).__name__
        raise UserError(f"collective: pass a name, or an object as collectives.build(...) makes one; not a {kind}")
    method = method_of(compressor)
    if isinstance(collective, str):
        collective = collectives.build(collective or method.collective or usual)
    refuse_wire(method, collective)
    return method, collective


def refuse_optimizer(optimizer: object, where: str = "sync.step") -> None:
    """UserError for an object that is no optimizer, and for one whose step computes gradients: none are averaged.

    where  what got it, in the error
    """
    if not hasattr(optimizer, "param_groups") or not hasattr(optimizer, "step"):
        raise UserError(f"{where}: needs one optimizer, not a {type(optimizer).__name__}")
    kind: Any = type(optimizer)
    if _needs_closure(kind):
        raise UserError(
            f"{where}: {type(optimizer).__name__} needs a closure, whose gradients would not be averaged; take an "
            "optimizer whose step() needs none"
        )


@functools.cache
def _needs_closure(kind: Any) -> bool:
    closure = inspect.signature(kind.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def refuse_missing(optimizer: Optimizer, parameters: Mapping[str, nn.Parameter], all_of_them: bool) -> None:
    """UserError for an optimizer that holds none of these parameters, by name, or not all of them.

    all_of_them  the scheduler updates the model, and would leave out what it does not hold
    """
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    missing = [name for name, parameter in parameters.items() if id(parameter) not in held]
    if len(missing) == len(parameters):
        raise UserError("synchronise: optimizer= holds no parameter of the model")
    if missing and all_of_them:
        raise UserError(f"synchronise: optimizer= does not hold {missing[0]}; this scheduler updates all that learns")


def holds(optimizer: Optimizer, parameters: Collection[int]) -> bool:
    """Whether it updates one of these parameters, which are given by `id`."""
    return any(id(each) in parameters for group in optimizer.param_groups for each in group["params"])


def refuse_no_module(model: object) -> None:
    """UserError for an object that is no torch.nn.Module."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model: must be a torch.nn.Module, not a {type(model).__name__}")


def refuse_wrapped(model: nn.Module) -> None:
    """UserError for what averages its gradients itself, or has a part of each parameter only."""
    if isinstance(model, DistributedDataParallel):
        raise UserError("model: DistributedDataParallel averages its gradients already; pass the module inside it")
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(each, fsdp.FullyShardedDataParallel) for each in model.modules()):
        raise UserError("model: FullyShardedDataParallel shards it; averages are of whole gradients, as DDP has them")
    refuse_held(model)


def refuse_held(model: nn.Module) -> None:
    """UserError for a model whose gradients a `synchronise` averages already."""
    for name, parameter in model.named_parameters():
        if (watch := _held.get(parameter)) is not None and watch() is not None:
            raise UserError(f"model: {name} is in another synchronise already; close() that one first")


def refuse_composition(scheduler: Scheduler, parts: Parts) -> None:
    """UserError for a schedule that does not go with the other parts."""
    if reason := scheduler.driver.accepts(parts):
        name = type(scheduler).__module__.rpartition(".")[2]
        raise UserError(f"synchronise: {name!r} {reason}")


def mark_state(maker: str, compressor: Method) -> dict[str, str]:
    """Entries that mark a state. maker: `sync` or `comm_hook`, as its errors name it"""
    return {_MAKER: maker, _METHOD: name_of(compressor)}


def refuse_state(state: Mapping[str, Any], maker: str, compressor: Method) -> None:
    """UserError for anything but a state of this maker with this compressor.

    Residuals of two compressors may have the same names and shapes, so that nothing else distinguishes them.
    """
    where = f"{maker}.load_state_dict"
    if not isinstance(state, Mapping) or _MAKER not in state:
        raise UserError(f"{where}: needs what {maker}.state_dict() returned, not {_kind_of(state)}")
    if state[_MAKER] != maker:
        raise UserError(f"{where}: this is a state of {state[_MAKER]}, whose gradient is cut in another way")
    if state[_METHOD] != name_of(compressor):
        raise UserError(
            f"{where}: this is a state of compressor {state[_METHOD]!r}, and here is {name_of(compressor)!r}"
        )


def _kind_of(state: object) -> str:
    return "a mapping without its keys" if isinstance(state, Mapping) else f"a {type(state).__name__}"


class ModelWatch:
    """Holds a model's parameters for one `synchronise`, and sees what the loop does to them later.

    A parameter that is added or unfrozen later would not be averaged, and one that is moved or cast would not fit the
    flat gradient. Values that move to other memory, as with ZeRO, do no harm.
    """

    place: Callable[[Tensor], int] = staticmethod(Tensor.data_ptr)
    """Where a parameter's values are."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._named = dict(model.named_parameters())
        self._learns = list(map(_LEARNS, self._named.values()))
        self._kinds = [(parameter.device, parameter.dtype) for parameter in self._named.values()]
        self._places = list(map(self.place, self._named.values()))
        self._registered = False
        for parameter in self._named.values():
            if parameter.requires_grad:
                _held[parameter] = weakref.ref(self)
        hooks = [
            modules.register_module_parameter_registration_hook(WeakHook(self._note)),
            modules.register_module_module_registration_hook(WeakHook(self._note)),
        ]
        self._detach: list[Callable[[], None]] = [hook.remove for hook in hooks]

    def check(self) -> None:
        """Before a step: UserError where the model has other parameters than at first, or one was moved or cast."""
        if self._registered:
            self._registered = False
            self._compare()
        places = list(map(self.place, self._named.values()))
        if places != self._places:
            self._refuse_moved()
            self._places = places

    def check_frozen(self) -> None:
        """Before an exchange: UserError where other parameters learn than at first.

        Between exchanges some may not, as a critic's while a generator learns from it.
        """
        learns = list(map(_LEARNS, self._named.values()))
        if learns != self._learns:
            pairs = zip(self._named, self._learns, learns, strict=True)
            name, learned = next((name, before) for name, before, now in pairs if before != now)
            said = "frozen" if learned else "unfrozen"
            raise UserError(f"model: {name} was {said} after synchronise had begun; {AGAIN}")

    def close(self) -> None:
        """Another `synchronise` may have the model from now on."""
        for detach in self._detach:
            detach()
        for parameter in self._named.values():
            _held.pop(parameter, None)

    def _note(self, *_: Any) -> None:
        """Some module got a parameter or a module; whether this model has it is seen at the next step."""
        self._registered = True

    def _compare(self) -> None:
        now = dict(self._model.named_parameters())
        for name in {**now, **self._named}:
            if now.get(name) is not self._named.get(name):
                raise UserError(f"model: {name} was added, removed or replaced after synchronise had begun; {AGAIN}")

    def _refuse_moved(self) -> None:
        for (name, parameter), kind in zip(self._named.items(), self._kinds, strict=True):
            if (parameter.device, parameter.dtype) != kind:
                now = f"{str(parameter.dtype).removeprefix('torch.')} on {parameter.device}"
                raise UserError(f"model: {name} is {now} now; move or cast a model before synchronise, not after")
