"""What every driver keeps, and that training, the planner and `synchronise` refuse what it refuses."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import wirebench
from tests.exchange.lanes import LAYERS, PAIRS, Net, lanes_of, one_step
from tests.exchange.test_outer import clock
from wirebench import collectives, compressors, schedulers
from wirebench.compose.resolve import PLAIN_SGD, resolve
from wirebench.config import loader
from wirebench.errors import UserError
from wirebench.exchange.driver import GRADIENTS, Parts, Workers
from wirebench.exchange.holders import exchanged
from wirebench.exchange.pipeline import Passes
from wirebench.exchange.scheduler import Scheduler
from wirebench.gradient.schedule import Duration
from wirebench.planner.compositions import clash
from wirebench.telemetry.timeline import Timeline

NAMES = schedulers.available()
OURS = [name for name in NAMES if schedulers.build(name).driver.messages]
PASSES = Passes(forward=(1.0, 1.0, 2.0), ready=(2.0, 5.0, 6.0), backward=7.0, other=0.5)
SINGLE = [range(place, place + 1) for place in range(3)]


def parts(compressor: str = "none", collective: str = "ring", wire: str = "", **more: Any) -> Parts:
    made = collectives.formatted(collectives.build(collective), compressors.wire(wire) if wire else None)
    return Parts(compressors.build(compressor), made, **more)


@pytest.mark.parametrize("name", NAMES)
def test_it_goes_with_dense_gradients_on_its_own_collective(name: str) -> None:
    driver = schedulers.build(name).driver
    assert driver.accepts(parts(collective=driver.collective)) is None


REFUSED = [
    ("builtin", {"compressor": "topk"}, "goes with compressor none and collective native, not topk and ring"),
    ("builtin", {"collective": "ring"}, "goes with compressor none and collective native, not none and ring"),
    ("builtin", {"collective": "native", "health_every": 2}, "nothing to look into"),
    ("builtin", {"collective": "native", "own_loop": True}, "is DistributedDataParallel or hvd.Dist"),
    ("dear", {"collective": "native"}, "runs the halves of a plan apart, .* ring is its default"),
    ("dear", {"clip": 1.0}, "before the whole gradient's norm is known; set optimizer.clip=0"),
    ("dear", {"own_loop": True, "optimizer": False}, "updates the model itself; make the optimizer first, and write "),
    ("dear", {"own_loop": True, "scaler": True}, "updates the model itself, which a GradScaler does not allow"),
    ("easgd", {"compressor": "topk"}, "sends weights, not gradients: it goes with compressor none, not topk"),
    ("easgd", {"wire": "int8"}, "a wire format would round them; set collective.wire to nothing"),
    ("easgd", {"health_every": 2}, "no gradients to look into; set output.health_every=0"),
    ("easgd", {"own_loop": True, "scaler": True}, "which a GradScaler does not allow"),
    ("outer", {"compressor": "dgc"}, "'dgc' applies a momentum to what it is given; set its momentum to 0$"),
    ("outer", {"compressor": "lion_sign"}, "and 'lion_sign' applies a momentum to what it is given$"),
    ("outer", {"health_every": 2}, "no gradients to look into"),
    ("outer", {"own_loop": True, "optimizer": False}, "make the optimizer first"),
]


@pytest.mark.parametrize(("name", "given", "words"), REFUSED)
def test_what_it_refuses(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        raise ValueError(schedulers.build(name).driver.accepts(parts(**given)))


@pytest.mark.parametrize("name", sorted({*NAMES} - {name for name, _, _ in REFUSED}))
def test_others_refuse_nothing(name: str) -> None:
    for compressor in compressors.available():
        for collective in collectives.available():
            more: dict[str, Any] = {"clip": 1.0, "health_every": 2, "own_loop": True}
            more |= {"optimizer": False, "scaler": True}
            assert schedulers.build(name).driver.accepts(parts(compressor, collective, **more)) is None


def said(ask: Any, *given: Any) -> str:
    try:
        return ask(*given) or ""
    except UserError as error:
        return str(error)


def trained(*words: str) -> None:
    resolve(loader.load("configs/smoke.toml", [*PLAIN_SGD, "output.health_every=0", *words]))


def synchronised(scheduler: Scheduler, compressor: str, collective: str) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    wirebench.synchronise(model, compressors.build(compressor), scheduler, collective, optimizer=optimizer)


A_QUARTER = sorted({"none", "dgc", "lion_sign", *compressors.available()[::4]})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "names", [A_QUARTER, pytest.param(compressors.available(), marks=pytest.mark.slow)], ids=["a quarter", "all"]
)
def test_training_the_planner_and_a_loop_of_ones_own_ask_the_driver(name: str, names: list[str]) -> None:
    """Where the driver accepts, `synchronise` finds no job to be part of; of `builtin` it is none of the wrappers."""
    built = schedulers.build(name)
    for collective in ("ring", "native"):
        for compressor in names:
            reason = built.driver.accepts(parts(compressor, collective)) or ""
            words = f"scheduler.name={name}", f"compressor.name={compressor}", f"collective.name={collective}"
            assert said(trained, *words) == (reason and f"scheduler.name: {name!r} {reason}")
            assert said(clash, built, compressor, collective) == reason
            own = built.driver.accepts(parts(compressor, collective, own_loop=True)) or ""
            assert (
                said(synchronised, built, compressor, collective).partition(";")[0]
                == (
                    f"synchronise: {name!r} {own}" if own else "synchronise: this process is part of no job yet"
                ).partition(";")[0]
            )


@pytest.mark.parametrize("name", NAMES)
def test_a_step_on_paper(name: str) -> None:
    """Nothing to send adds nothing; what is sent is drawn once, each half of it where there are two; and it adds."""
    scheduler = schedulers.build(name)
    simulate, halves = scheduler.driver.simulate, scheduler.driver.halves
    groups = [range(3)] if scheduler.driver.starts == "step" else SINGLE
    nothing = simulate(scheduler, PASSES, groups, [Duration(0.0)] * len(groups))
    assert (nothing.seconds, nothing.exposed) == (PASSES.seconds, 0)
    much = simulate(scheduler, PASSES, groups, [Duration(1e3, 1e3 * halves)] * len(groups))
    assert sorted(span.bucket for span in much.spans) == sorted([*range(len(groups))] * (1 + halves))
    assert {span.half for span in much.spans} == ({"reduce", "copy"} if halves else {"all"})
    assert much.seconds == pytest.approx(PASSES.seconds + much.exposed) and much.exposed > 1


@pytest.mark.parametrize("name", OURS)
def test_virtual_workers_are_driven_as_a_training_loop_drives_them(name: str) -> None:
    """They stay together, or near the weights that all of them share; what a rank saves says of which kind it is."""
    scheduler = schedulers.build(name)
    models, lanes = lanes_of(2, [LAYERS] if scheduler.driver.starts == "step" else PAIRS)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
    here: Any = SimpleNamespace(distributed=False)
    workers = Workers(here, lanes, models, optimizers, clock(), Timeline(0))
    driver = scheduler.driver.make(workers, scheduler)
    for step in range(sum(scheduler.driver.rhythm(scheduler))):
        one_step(driver, models, optimizers, step)
        assert driver.met(step) == step
    assert all(len(log) for log in driver.take_logs())
    driver.settle()
    with driver.evaluation_view():
        first, second = (lane.flat.gather_weights() for lane in lanes)
        assert torch.equal(first, second)
    for holder in driver.holders:
        state = holder.state_dict()
        assert exchanged(state) == scheduler.driver.exchanges
        assert (scheduler.driver.own_weights in state) == (scheduler.driver.exchanges != GRADIENTS)
    driver.close()


class Undriven:
    """A scheduler of before there were drivers."""

    mode = "overlapped"


def test_a_scheduler_without_a_driver_is_refused() -> None:
    with pytest.raises(UserError, match=r"Undriven' has no driver: its base is Scheduler"):
        schedulers.build("tests.exchange.test_drivers.Undriven")
