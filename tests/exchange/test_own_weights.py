"""Weights that are a rank's own go on in another world: their part in the common ones stays what it was."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.exchange.lanes import LAYERS, Averaging, lanes_of, one_step
from tests.exchange.test_outer import clock
from wirebench import compressors, schedulers
from wirebench.errors import Diverged, UserError
from wirebench.exchange.anchored import NEVER
from wirebench.exchange.driver import Workers
from wirebench.exchange.finite import Finite
from wirebench.exchange.holders import GRADIENTS, exchanged, restore
from wirebench.exchange.own_weights import together
from wirebench.telemetry.timeline import Timeline
from wirebench.training.train_state import rank_states
from wirebench.utils.tensor_tree import pack, unpack

SENDING_WEIGHTS = [name for name in schedulers.available() if schedulers.PLUGINS.load(name).driver.own_weights]
OPTIONS: dict[str, Any] = {"every": 2}
LOCAL: Any = SimpleNamespace(distributed=False)


class World:
    """Virtual workers under a scheduler that sends weights, and compressors that hold back most of what they get."""

    def __init__(self, name: str, size: int, cut: Sequence[range] = (LAYERS,), **options: Any) -> None:
        self.name, self.options = name, options
        options = {k: v for k, v in (OPTIONS | options).items() if k in schedulers.PLUGINS.options(name)}
        self.models, self.lanes = lanes_of(size, list(cut))
        for lane in self.lanes:
            lane.compressor = compressors.build("topk", density=0.1)
        self.optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.5) for model in self.models]
        scheduler: Any = schedulers.build(name, **options)
        workers = Workers(LOCAL, self.lanes, self.models, self.optimizers, clock(), Timeline(0))
        self.driver: Any = scheduler.driver.make(workers, scheduler)

    def step(self, number: int) -> None:
        one_step(self.driver, self.models, self.optimizers, number)

    def states(self) -> list[Mapping[str, Any]]:
        return [holder.state_dict() for holder in self.driver.holders]

    @torch.no_grad()
    def drift(self) -> None:
        """Take the ranks' weights far from each other, as they are after many steps."""
        for rank, lane in enumerate(self.lanes):
            noise = torch.randn(lane.flat.grad.shape, generator=torch.Generator().manual_seed(rank))
            lane.flat.set_weights(lane.flat.gather_weights() + noise)

    def handed_on(self, size: int, lost: int | None = None) -> "World":
        """The world of `size` ranks that goes on from here, as a run that is resumed does; the state of `lost` is."""
        world = World(self.name, size, **self.options)
        files = [None if rank == lost else pack(state) for rank, state in enumerate(self.states())]
        with torch.no_grad():
            for holder, each in zip(world.driver.holders, rank_states(files, size), strict=True):
                restore(holder, [unpack(file) for file in each.states], each.joins, each.weight)
        return world

    @torch.no_grad()
    def in_average(self) -> Tensor:
        """The ranks' mean distance from the common weights, with the mean of what their compressors hold back."""
        with self.driver.evaluation_view():
            common = [lane.flat.gather_weights().double() for lane in self.lanes]
        assert all(torch.equal(each, common[0]) for each in common)
        distances = [lane.flat.gather_weights().double() - each for lane, each in zip(self.lanes, common, strict=True)]
        held = [state["residual"].double() for state in self.states() if "residual" in state]
        return torch.cat([sum(each, torch.zeros_like(common[0])) / len(self.lanes) for each in (distances, held)])


@pytest.mark.parametrize("name", SENDING_WEIGHTS)
def test_from_four_ranks_to_three_and_back(name: str) -> None:
    world = World(name, 4)
    for number, size in ((0, 3), (3, 4)):
        for step in range(number, number + 3):
            world.step(step)
        world.drift()
        before, states = world.in_average(), world.states()
        world.driver.close()
        world = world.handed_on(size)
        off = (world.in_average() - before).abs().sum()
        assert before.abs().sum() > 0 and off <= 1e-6 * before.abs().sum()
        for state in world.states():
            for key in (key for key in states[0] if key.startswith("shared.")):
                assert torch.equal(state[key], states[0][key]), key
    world.step(6)
    world.driver.close()


def under_way(**options: Any) -> tuple[World, Tensor]:
    """Two workers with a mean that is to be applied after step 2, and the anchor with it applied."""
    world = World("outer", 2, **options)
    for number in range(2):
        world.step(number)
    holder = world.driver.holders[0]
    assert holder.due.tolist()[0] == 2
    part = slice(world.lanes[0].buckets[0].start, world.lanes[0].buckets[0].stop)
    anchor, mean, rule = holder.anchor.clone(), holder.message[part], holder.rule
    assert bool(mean.any()) and not bool(holder.velocity.any())
    return world, anchor.index_put((torch.arange(part.start, part.stop),), anchor[part] - rule.rate * 1.9 * mean)


def test_what_is_under_way_is_applied_once_where_another_world_begins() -> None:
    world, anchor = under_way(delay=1)
    for other in (world.handed_on(3), world.handed_on(1)):
        for holder in other.driver.holders:
            assert holder.due.tolist() == [NEVER] and torch.allclose(holder.anchor, anchor, atol=1e-7)
        before = other.driver.holders[0].anchor.clone()
        other.step(2)
        assert torch.equal(before, other.driver.holders[0].anchor)
        other.driver.close()


def test_who_takes_a_lost_ones_place_applies_it_when_all_others_do() -> None:
    world, anchor = under_way(delay=1)
    other = world.handed_on(2, lost=0)
    for _ in range(2):
        same = [holder.anchor for holder in other.driver.holders]
        assert torch.equal(*same) and len({tuple(holder.due.tolist()) for holder in other.driver.holders}) == 1
        other.step(2)
    assert torch.allclose(same[0], anchor, atol=1e-7)


def test_what_is_under_way_is_applied_where_it_is_sent_at_other_steps() -> None:
    """Else the next exchange, which could come before it is due, would write over it."""
    world, anchor = under_way(delay=1)
    for every, delay in ((3, 1), (2, 0)):
        again = World("outer", 2, every=every, delay=delay)
        again.driver.holders[0].load_state_dict(unpack(pack(world.states()[0])))
        assert again.driver.holders[0].due.tolist() == [NEVER]
        assert torch.allclose(again.driver.holders[0].anchor, anchor, atol=1e-7)


def test_what_is_under_way_is_applied_where_fragments_are_cut_anew() -> None:
    world, anchor = under_way(cut=[range(2), range(2, len(LAYERS))], delay=1, fragments=2)
    again = World("outer", 2, delay=1)
    again.driver.holders[0].load_state_dict(unpack(pack(world.states()[0])))
    assert again.driver.holders[0].due.tolist() == [NEVER]
    assert torch.allclose(again.driver.holders[0].anchor, anchor, atol=1e-7)
    older = {key: value for key, value in world.states()[0].items() if not key.endswith("cuts")}
    with pytest.raises(UserError, match=r"how its 2 fragments are cut, .* as many fragments, not with 1"):
        again.driver.holders[0].load_state_dict(unpack(pack(older)))
    nothing = older | {key: torch.full_like(value, NEVER) for key, value in older.items() if key.endswith("due")}
    again.driver.holders[0].load_state_dict(unpack(pack(nothing)))
    assert again.driver.holders[0].due.tolist() == [NEVER]
    world.driver.holders[1].load_state_dict(unpack(pack(older)))
    assert world.driver.holders[1].due.tolist()[0] == 2


@pytest.mark.parametrize(("fragments", "counts"), [(1, [0, 1, 2]), (2, [0, 0, 1, 1, 2])])
def test_what_changes_in_turn_counts_exchanges(fragments: int, counts: list[int]) -> None:
    """Among local steps of an even number a method's turn would else be the same for ever."""
    cut, steps = [LAYERS] if fragments == 1 else [range(2), range(2, len(LAYERS))], []
    world = World("outer", 2, cut=cut, fragments=fragments)
    for lane in world.lanes:
        lane.compressor = Averaging()
    for number in range(6):
        world.step(number)
    for lane in world.lanes:
        steps.append([seen.step for _, seen, _ in lane.compressor.seen])  # type: ignore[attr-defined]
    assert steps == [counts] * 2


def test_a_mean_of_another_run_proves_nothing_of_the_ranks_of_this_one() -> None:
    world, _ = under_way(delay=1)
    assert world.driver.met(1) == 1, "workers of one process go step by step"
    again = world.handed_on(2)
    again.driver.overlaps = True  # as of a rank that is a process
    for step, met in ((2, -1), (3, -1), (4, 3)):
        again.step(step)
        assert again.driver.met(step) == met
    again.driver.close()


def test_a_methods_own_weights_are_no_elastic_averages() -> None:
    assert exchanged({"own.weights": torch.zeros(1), "residual": torch.zeros(1)}) == GRADIENTS
    assert exchanged({"own.weights": torch.zeros(1), "shared.centre": torch.zeros(1)}) == "weights"


def test_a_sum_of_weights_is_looked_at_for_what_is_not_finite() -> None:
    finite = Finite(torch.device("cpu"))
    finite.watch(0, torch.full((8,), 3e38))  # whose sum overflows
    with pytest.raises(Diverged, match="step 1: a worker's weights are no longer finite"):
        finite.watch(1, torch.tensor([0.0, torch.nan]))


def test_who_takes_over_from_nobody_begins_with_the_common_weights() -> None:
    common = torch.tensor([1.0, -2.0])
    assert torch.equal(together([], common, 4 / 3), common)
    assert together([common + 1, common + 3], common, 0.75).tolist() == [4.0, 1.0]
