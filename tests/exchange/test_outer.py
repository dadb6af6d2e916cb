"""Local steps with an outer optimizer: equal to the papers' rules in plain loops, on time, and resumed bit for bit."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.exchange.lanes import LAYERS, Net, images, lanes_of, local_step, loss_of, one_step
from wirebench import compressors, schedulers
from wirebench.compose import run as train
from wirebench.errors import UserError
from wirebench.exchange import outer
from wirebench.exchange.advance import Steps
from wirebench.exchange.anchored import NEVER
from wirebench.exchange.lane import Lane
from wirebench.exchange.outer import OuterSteps
from wirebench.gradient.context import ExchangeContext
from wirebench.gradient.error_memory import RESIDUAL
from wirebench.gradient.flat import Bucket
from wirebench.gradient.schedule import LayerCost
from wirebench.schedulers.outer import Outer
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.timeline import Timeline

ROOT = Path(__file__).resolve().parents[2]
RATE = 0.1


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), RATE, momentum=0.5)


def clock() -> Clock:
    made = Clock(torch.device("cpu"), Timeline(0))
    made.resume()
    return made


def by_hand(size, steps, rule, cuts):
    """DiLoCo with whole models, PyTorch's SGD outside: all weights, then the anchor.

    cuts  by fragment the places of its parameters; fragment f is sent after steps H - 1 + f H / F, and H later each
    """
    models = [Net() for _ in range(size)]
    optimizers = [sgd(model) for model in models]
    anchor = [nn.Parameter(p.detach().clone()) for p in models[0].parameters()]
    outside = torch.optim.SGD(anchor, rule.rate, momentum=rule.momentum, nesterov=rule.nesterov)
    weights = [list(model.parameters()) for model in models]
    first = [rule.every - 1 + number * rule.every // rule.fragments for number in range(len(cuts))]
    sent: dict[int, list[Tensor]] = {}

    def apply(places):
        outside.zero_grad()
        for place, mean in zip(places, sent.pop(places[0]), strict=True):
            anchor[place].grad = mean
        outside.step()
        with torch.no_grad():
            for each in weights:
                for place in places:
                    each[place].lerp_(anchor[place], 1 - rule.keep)

    for step in range(steps):
        local_step(models, optimizers, step)
        for begin, places in zip(first, cuts, strict=True):
            if rule.delay and step in range(begin + rule.delay, steps, rule.every):
                apply(places)
            if step in range(begin, steps, rule.every):
                sent[places[0]] = [
                    torch.stack([anchor[place].detach() - each[place].detach() for each in weights]).sum(0) / size
                    for place in places
                ]
                if not rule.delay:
                    apply(places)
    return [list(model.parameters()) for model in models], [p.detach() for p in anchor]


def close(ours: list[Tensor], theirs: list[Tensor]) -> bool:
    return all(torch.allclose(p, q, rtol=1e-5, atol=1e-6) for p, q in zip(ours, theirs, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize(
    "rule",
    [
        Outer(every=2),
        Outer(every=3, rate=1.0, momentum=0.0, nesterov=False),
        Outer(every=2, rate=0.5, momentum=0.8, nesterov=False, keep=0.25),
        Outer(every=4, fragments=2, delay=3, keep=0.5),
        Outer(every=3, fragments=2, delay=1),
    ],
    ids=["diloco", "local sgd", "heavy ball, a quarter kept", "streaming, half kept", "streaming"],
)
def test_the_update_is_the_papers(rule: Outer, size: int) -> None:
    groups = [range(2), range(2, len(LAYERS))] if rule.fragments > 1 else [LAYERS]
    models, lanes = lanes_of(size, groups)
    optimizers = [sgd(model) for model in models]
    driver = OuterSteps(lanes, optimizers, rule, clock(), overlaps=False)
    for step in range(13):
        one_step(driver, models, optimizers, step)
        if rule.fragments == 1:
            assert [len(log) for log in driver.take_logs()] == [int((step + 1) % rule.every == 0)] * size
    names = [name for name, _ in models[0].named_parameters()]
    cuts = [[names.index(lanes[0].flat.layers[place].name) for place in group] for group in groups]
    weights, anchor = by_hand(size, 13, rule, cuts)
    for model, expected in zip(models, weights, strict=True):
        assert close(list(model.parameters()), expected)
    with driver.evaluation_view():
        for model in models:
            assert close(list(model.parameters()), anchor)
    assert close(list(models[0].parameters()), weights[0])
    driver.close()


def test_sgd_that_is_averaged_after_each_step_is_dense_training() -> None:
    models, lanes = lanes_of(3, [LAYERS])
    optimizers = [torch.optim.SGD(model.parameters(), RATE) for model in models]
    driver = OuterSteps(lanes, optimizers, Outer(1, 1.0, 0.0, nesterov=False), clock(), overlaps=False)
    dense = Net()
    together = torch.optim.SGD(dense.parameters(), RATE)
    for step in range(5):
        one_step(driver, models, optimizers, step)
        together.zero_grad()
        torch.stack([loss_of(dense, images(10 * step + rank)) for rank in range(3)]).mean().backward()
        together.step()
    assert close(list(models[2].parameters()), list(dense.parameters()))
    driver.close()


def test_a_rule_of_ones_own_counts_its_exchanges_and_goes_on_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a method does in turn it does from one exchange to the next, whenever the rule says that one is due."""

    class PostLocal(Outer):
        def starts(self, fragment: int, step: int) -> bool:
            return step < 3 or super().starts(fragment, step)

    noted: list[int] = []
    average = outer._average

    def noting(lane: Lane, fragment: Bucket, world: ExchangeContext) -> Steps:
        noted.append(world.step)
        return average(lane, fragment, world)

    monkeypatch.setattr(outer, "_average", noting)
    rule, state = PostLocal(every=4), dict[str, Any]()
    for steps in (range(4), range(4, 12)):
        models, lanes = lanes_of(1, [LAYERS])
        optimizers = [sgd(models[0])]
        driver = OuterSteps(lanes, optimizers, rule, clock(), overlaps=False)
        if state:
            driver.holders[0].load_state_dict(state)
        for step in steps:
            one_step(driver, models, optimizers, step)
        state = driver.holders[0].state_dict()
        driver.close()
    assert noted == [0, 1, 2, 3, 4, 5]
    driver = OuterSteps(lanes, optimizers, PostLocal(every=4, delay=3), clock(), overlaps=False)
    one_step(driver, models, optimizers, 0)
    with pytest.raises(UserError, match=r"sends fragment 0 after step 1, while the exchange before .* after step 3"):
        one_step(driver, models, optimizers, 1)
    driver.close()
    models, lanes = lanes_of(1, [range(2), range(2, len(LAYERS))])
    cut_anew = OuterSteps(lanes, [sgd(models[0])], rule, clock(), overlaps=False)
    cut_anew.holders[0].load_state_dict(state)
    assert cut_anew.holders[0].sent.tolist() == [6, 6]
    cut_anew.close()


@pytest.mark.parametrize("threads", [False, True])
def test_fragments_go_in_turn_and_are_applied_when_they_are_due(threads: bool) -> None:
    """Two fragments every four steps, two steps apart; each is applied three steps after it was sent."""
    rule = Outer(every=4, fragments=2, delay=3)
    models, lanes = lanes_of(1, [range(2), range(2, len(LAYERS))])
    optimizers = [sgd(models[0])]
    driver = OuterSteps(lanes, optimizers, rule, clock(), overlaps=threads)
    [holder] = driver.holders
    parts = [slice(bucket.start, bucket.stop) for bucket in lanes[0].buckets]
    changed: dict[int, list[int]] = {}
    for step in range(11):
        before = holder.anchor.clone()
        one_step(driver, models, optimizers, step)
        changed[step] = [n for n, part in enumerate(parts) if not torch.equal(before[part], holder.anchor[part])]
    # Fragment 0 is sent after steps 3, 7, 11, fragment 1 after 5, 9; three steps later each changes the anchor.
    assert {step: which for step, which in changed.items() if which} == {6: [0], 8: [1], 10: [0]}
    assert holder.due.tolist() == [NEVER, 12]
    driver.settle()
    driver.close()


def test_what_is_under_way_delays_nobody_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    models, lanes = lanes_of(1, [LAYERS])
    optimizers = [sgd(models[0])]
    driver = OuterSteps(lanes, optimizers, Outer(every=2, delay=1), clock(), overlaps=True)
    held, exchange = threading.Event(), driver._exchange
    monkeypatch.setattr(driver, "_exchange", lambda *words: (held.wait(60), exchange(*words)))
    for step in range(2):
        one_step(driver, models, optimizers, step)
    assert driver.holders[0].due.tolist() == [2], "sent, and the step is over"
    held.set()
    one_step(driver, models, optimizers, 2)
    assert driver.holders[0].due.tolist() == [NEVER]
    driver.close()


@pytest.mark.clock
@pytest.mark.parametrize("delay", [0, 1])
def test_only_what_is_waited_for_is_exposed(delay: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange after the second step ends 0.3 s later; with a delay that is before the third step."""
    models, lanes = lanes_of(1, [LAYERS])
    optimizers, times = [sgd(models[0])], clock()
    driver = OuterSteps(lanes, optimizers, Outer(every=2, delay=delay), times, overlaps=True)
    exchange, may_end, ended = driver._exchange, threading.Event(), threading.Event()

    def slow(*words: Any) -> None:
        assert may_end.wait(60) if delay else may_end.wait(0.3) is False
        exchange(*words)
        ended.set()

    monkeypatch.setattr(driver, "_exchange", slow)
    for step in range(3):
        if step == 2 and delay:
            time.sleep(0.3)
            may_end.set()
            assert ended.wait(60)
        one_step(driver, models, optimizers, step)
        times.end_step(step, 1, True)
    exposed = [each.phases["exchange_exposed"] for each in times.drain()]
    assert exposed[0] == 0 and (exposed[1] >= 0.2) == (delay == 0) and exposed[2] < 0.2
    driver.close()


def test_what_a_compressor_leaves_out_waits_for_the_next_exchange() -> None:
    """The mean of the differences is what moved the anchor, and what the ranks hold back."""
    models, lanes = lanes_of(2, [LAYERS])
    for lane in lanes:
        lane.compressor = compressors.build("topk", density=0.1)
    driver = OuterSteps(lanes, [sgd(m) for m in models], Outer(2, 1.0, 0.0, nesterov=False), clock(), overlaps=False)
    alone = [Net(), Net()]
    optimizers, theirs = [sgd(model) for model in models], [sgd(model) for model in alone]
    start = driver.holders[0].anchor.clone()
    for step in range(2):
        one_step(driver, models, optimizers, step)
        local_step(alone, theirs, step)
    moved = start - driver.holders[0].anchor
    held = torch.stack([lane.compressor.memory.state_dict()[RESIDUAL] for lane in lanes]).sum(0)
    differences = torch.stack([start - in_order(model, lanes[0]) for model in alone]).sum(0)
    assert torch.allclose(differences, 2 * moved + held, rtol=1e-5, atol=1e-6)
    assert 0 < int(torch.count_nonzero(moved)) < 0.25 * start.numel()
    driver.close()


def in_order(model: nn.Module, lane: Lane) -> Tensor:
    """A model's parameters in the order of a lane."""
    named = dict(model.named_parameters())
    return torch.cat([named[layer.name].detach().flatten() for layer in lane.flat.layers])


@pytest.mark.parametrize("fragments", [1, 2, 3, 9])
def test_fragments_are_about_the_same_size(fragments: int) -> None:
    layers = [LayerCost(str(place), numel) for place, numel in enumerate((5, 40, 3, 60, 10, 50))]
    groups = Outer(every=10, fragments=fragments).partition(layers, lambda numel: 0.0)
    assert len(groups) == min(fragments, 6) and all(groups)
    assert [place for group in groups for place in group] == list(range(6))
    sizes = [sum(layers[place].numel for place in group) for group in groups]
    assert max(sizes) <= 168 / len(groups) + 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every: needs at least 1"),
        ({"every": 3, "fragments": 4}, "fragments: needs 1 to every = 3"),
        ({"every": 3, "delay": 3}, "delay: needs 0 to every - 1 = 2"),
        ({"rate": 0.0}, "rate: needs more than 0"),
        ({"momentum": 1.0}, "momentum lies in"),
        ({"momentum": 0.0}, "nesterov: needs momentum above 0"),
        ({"keep": 1.0}, "keep lies in"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, float], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        schedulers.build("outer", **options)


def test_a_run_goes_on_under_another_schedule_from_the_model(tmp_path: Path) -> None:
    """What a residual of gradients says is no difference of weights."""
    words = ["engine.workers=2", "engine.name=local", "compressor.name=topk", "train.warmup_steps=0",
             "output.tensorboard=false", "train.checkpoint_every_steps=3"]  # fmt: skip
    local = ["scheduler.name=outer", "scheduler.every=4"]
    for first, second, told in ((["scheduler.name=wfbp"], local, "gradients"), (local, [], "weights' differences")):
        folder = tmp_path / told
        start = [str(ROOT / "configs/synthetic/toy.toml"), *words, f"output.dir={folder}"]
        assert train.main([*start, *first, "train.max_steps=3"]) == 0
        before = load_file(folder / "checkpoints/step-00000003/model.safetensors")
        assert train.main([*start, *second, "train.max_steps=6", "train.resume=auto"]) == 0
        after = load_file(folder / "checkpoints/step-00000006/model.safetensors")
        moved = {
            name for name in before if name.startswith("parameter.") and not torch.equal(before[name], after[name])
        }
        warned = json.loads((folder / "record.json").read_text())["warnings"]
        assert f"the earlier run exchanged {told}" in " ".join(warned)
        held = load_file(folder / "checkpoints/step-00000006/rank-0001.safetensors")
        if second:
            # The exchange after step 3 took the anchor, which is the model, on by the few entries of top-k.
            assert moved and all((before[name] - after[name]).count_nonzero() < before[name].numel() for name in moved)
        assert ("compressor.own.outer.weights" in held) == bool(second)


def test_fragments_need_a_compressor_that_may_be_cut(tmp_path: Path, capsys) -> None:
    overrides = ["compressor.name=fetch_sgd", "compressor.momentum=0", "scheduler.name=outer", "scheduler.fragments=2"]
    assert train.main([str(ROOT / "configs/synthetic/toy.toml"), *overrides, f"output.dir={tmp_path}"]) == 2
    assert "needs it whole" in capsys.readouterr().err
