"""A worker: its loss adds up over micro-batches, its draws have names, its evaluation counts every image."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from wirebench.config.loader import TrainConfig
from wirebench.data import Shard, build
from wirebench.gradient.flat import FlatGradient
from wirebench.training.replica import Replica

CPU = torch.device("cpu")
CLASSES, SIDE = 7, 4


class Classifier(nn.Module):
    """One linear layer behind dropout; notes how its images are laid out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.dropout = nn.Linear(3 * SIDE * SIDE, CLASSES), nn.Dropout(0.5)
        self.channels_last = False
        self.dtype = torch.float32

    def forward(self, images: Tensor) -> Tensor:
        self.channels_last = images.is_contiguous(memory_format=torch.channels_last)
        logits: Tensor = self.linear(self.dropout(images.flatten(1)))
        self.dtype = logits.dtype
        return logits


def worker_of(rank: int = 0, size: int = 1, **section) -> Replica:
    dataset = build("synthetic", image_size=SIDE, num_classes=CLASSES, train_size=64, test_size=21)
    model = Classifier()
    flat = FlatGradient(model, ["linear.bias", "linear.weight"])
    shard = Shard(dataset, rank, size, 8, 4, 0, CPU)
    optimizer = torch.optim.SGD(model.parameters())
    return Replica(rank, model, model, flat, optimizer, shard, TrainConfig(**section), CPU, [])


def batch(count: int = 8) -> tuple[Tensor, Tensor]:
    torch.manual_seed(5)
    return torch.randn(count, 3, SIDE, SIDE), torch.randint(0, CLASSES, (count,))


def test_a_pass_on_the_cpu_asks_no_other_back_end(monkeypatch):
    worker = worker_of()
    images, labels = batch()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("it writes down a traceback"))
    first, again, later = (worker.forward(images, labels, step, 0) for step in (0, 0, 1))
    assert first == again != later


def test_losses_of_micro_batches_add_up_to_the_steps_mean():
    worker = worker_of(accumulation=4)
    worker.model.eval()
    images, labels = batch()
    for _ in range(2):
        worker.begin_step()
        for part, (few, few_labels) in enumerate(zip(images.chunk(4), labels.chunk(4), strict=True)):
            worker.forward(few, few_labels, 0, part)
        worker.end_step()
    expected = nn.functional.cross_entropy(worker.model(images), labels)
    torch.testing.assert_close(worker.loss, expected.detach())
    torch.testing.assert_close(worker.epoch_loss.item(), 2 * expected.item())


def test_draws_are_named_by_seed_rank_step_and_part():
    def loss(rank: int = 0, seed: int = 0, step: int = 0, part: int = 0) -> float:
        return worker_of(rank, 2, seed=seed).forward(*batch(), step, part).item()

    assert loss() == loss()
    others = [loss(rank=1), loss(seed=1), loss(step=1), loss(part=1)]
    assert len({loss(), *others}) == 5


def test_evaluating_does_not_disturb_training():
    worker = worker_of()
    first = worker.evaluate()
    assert torch.equal(worker.evaluate(), first), "without dropout"
    assert worker.model.training
    assert worker.loss == 0


@pytest.mark.parametrize("size", [1, 2, 4])
def test_evaluation_counts_every_image_once(size):
    totals = sum(worker_of(rank, size).evaluate() for rank in range(size))
    assert isinstance(totals, Tensor)
    assert totals[3] == 21
    assert totals[1] <= totals[2] <= 21


def test_hits_are_counted():
    worker = worker_of()
    images, labels = next(iter(worker.shard.test()))
    worker.model.eval()
    ranked = worker.model(images).argsort(1, descending=True)
    top1 = sum(int(label in row[:1]) for label, row in zip(labels, ranked, strict=True))
    top5 = sum(int(label in row[:5]) for label, row in zip(labels, ranked, strict=True))
    worker.shard.dataset.test_size = 4  # that batch alone
    loss = nn.functional.cross_entropy(worker.model(images), labels, reduction="sum").item()
    assert worker.evaluate().tolist() == pytest.approx([loss, top1, top5, 4])


def test_precision_and_memory_format_are_the_configs():
    worker = worker_of(precision="bf16", channels_last=True)
    loss = worker.forward(*batch(), 0, 0)
    assert worker.model.dtype == torch.bfloat16
    assert worker.model.channels_last
    assert loss.dtype == torch.float32
    plain = worker_of()
    plain.forward(*batch(), 0, 0)
    assert plain.model.dtype == torch.float32
    assert not plain.model.channels_last


def test_label_smoothing_is_the_configs():
    worker, images, labels = worker_of(), *batch()
    worker.model.eval()
    sharp = worker.forward(images, labels, 0, 0)
    worker.section = dataclasses.replace(worker.section, label_smoothing=0.5)
    expected = nn.functional.cross_entropy(worker.model(images), labels, label_smoothing=0.5)
    assert worker.forward(images, labels, 0, 0).item() == pytest.approx(expected.item())
    assert sharp.item() != pytest.approx(expected.item())
