"""Train a model that FSDP2 shards within pods, with any exchange between pods: a run's record, bytes by level of links.

  torchrun --nproc-per-node 4 -m wirebench bench pods tables/pods_gpt compressor.name=topk train.max_steps=20
  wirebench cluster run --layout "(1+1)+(1+1)" --link "10gbit;20mbit" -- wirebench bench pods tables/pods_gpt

`wirebench train` takes the same config and overrides, and leaves the same record. A pod is --shard ranks, one after
the other.
The modules of the model's lists are sharded each for itself, the rest together. What is between pods:

  scheduler.name=builtin            FSDP's own hybrid sharding, dense
  a schedule that merges gradients  wirebench.compress_replicas, within the backward pass
  local steps (outer), or a compressor that returns updates   wirebench.synchronise, after the backward pass

On an emulated cluster with switches (docs/clusters.md) the record's `levels` has the bytes that a rank sends in a step
within its pod and between pods, by the counters of the links: headers and acknowledgements are among them. There a pod
is what hangs on a lower switch.
"""

import argparse
import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim import Optimizer

import wirebench
from wirebench import data
from wirebench.cluster.traffic import LevelBytes, read_levels
from wirebench.comm.engine import Engine, start
from wirebench.comm.launch import launched
from wirebench.compose.bookkeeping import folder_of, record_of
from wirebench.compose.build import model_of
from wirebench.compose.resolve import collective_of, compressor_of, resolve, scheduler_of
from wirebench.config import loader
from wirebench.config.loader import Config
from wirebench.data.base import labels_of, unit_of
from wirebench.dropin.shard_view import local
from wirebench.errors import Diverged, UserError
from wirebench.exchange.builtin import EnginesOwn
from wirebench.exchange.overlapped import Overlapped
from wirebench.telemetry.clock import Clock
from wirebench.telemetry.machines import LoadMeter, hosts
from wirebench.telemetry.step_stats import summary
from wirebench.telemetry.timeline import Timeline
from wirebench.training.loss import cross_entropy, logits_of, row_by_row
from wirebench.training.optimizers.build import build_optimizer
from wirebench.training.optimizers.rates import apply_learning_rate, learning_rate
from wirebench.utils.cli import parser_of
from wirebench.utils.rng import make_repeatable

NAME = "wirebench bench pods"
READ = {
    "train": ("epochs", "max_steps", "seed", "label_smoothing", "warmup_steps", "eval_every"),
    "output": ("dir", "tensorboard", "trace_steps"),
    "network": (),
}
"""Keys of these sections that mean something here. There is neither TensorBoard nor a timeline, and the only evaluation
is after the last step."""
UNSEEN = ("compress", "exchange_exposed")
"""Phases that lie within FSDP's backward pass, or within an update."""


class BetweenPods(NamedTuple):
    """What averages over pods.

    update  after the backward pass: average what is not averaged yet, clip, step the optimizer
    report  this rank's numbers of its exchanges, as in a record; {} where FSDP exchanges
    view    a context in which the model has the weights to evaluate
    """

    update: Callable[[], None]
    report: Callable[[], dict[str, Any]] = dict
    close: Callable[[], None] = lambda: None
    view: Callable[[], AbstractContextManager[None]] = nullcontext


def main(arguments: Sequence[str]) -> int:
    """Be a rank of the training; the exit code is 3 where it diverged."""
    options = _parser().parse_args(arguments)
    settings = resolve(loader.load(options.config, options.overrides))
    refuse(settings)
    if launched().alone:
        raise UserError(
            "needs ranks: torchrun --nproc-per-node 4 -m wirebench bench pods CONFIG, or wirebench cluster run "
            '--layout "(1+1)+(1+1)" --link "10gbit;20mbit" -- wirebench bench pods CONFIG'
        )
    settings = dataclasses.replace(settings, output=dataclasses.replace(settings.output, tensorboard=False))
    engine = start(dataclasses.replace(settings.engine, name="torch"), fusion_mb=None)
    engine.uncounted = True  # its communicator is not the one that exchanges
    ran = dataclasses.replace(settings.engine, name=engine.name, workers=engine.size)
    code = PodsRun(dataclasses.replace(settings, engine=ran), options.shard, engine, options.untested).train()
    engine.close()
    return code


def refuse(settings: Config) -> None:
    """UserError for settings that nothing here reads, and for what shards do not go with."""
    for section, names in READ.items():
        table = getattr(settings, section)
        for key in dataclasses.fields(table):
            if key.name not in names and getattr(table, key.name) != key.default:
                raise UserError(f"{section}.{key.name}: nothing of {NAME} reads it; leave it out")
    if settings.engine.name not in ("auto", "torch"):
        raise UserError(f"engine.name: FSDP2 is torch.distributed's, not {settings.engine.name!r}")
    if settings.scheduler.profile:
        raise UserError("scheduler.profile: a run in pods reads none; leave it out")
    if _is_native(settings) and (given := [key for key, value in settings.scheduler.options.items() if value]):
        raise UserError(f"scheduler.{given[0]}: FSDP makes its own messages, of whole units; leave it out")
    if settings.compressor.warmup:
        raise UserError("compressor.warmup: a run in pods has one density; leave it out")
    if settings.optimizer.name in ("muon", "dion2"):
        name = settings.optimizer.name
        raise UserError(f"optimizer.name: {name} orthogonalises whole matrices, and a rank has blocks of rows of them")
    if settings.engine.cuda_graphs:
        raise UserError("engine.cuda_graphs: no exchange between pods is captured; leave it out")
    if settings.collective.wire:
        raise UserError("collective.wire: no prediction of pods has wire formats; take compressor.name=quantised_sum")
    if settings.optimizer.clip and compressor_of(settings).makes_update:
        raise UserError("optimizer.clip: no rank has a whole gradient before its update is made; set it to 0")


class PodsRun:
    """One rank's part of a training in pods.

    shard     ranks of a pod
    untested  leave out the evaluation after the last step
    """

    def __init__(self, settings: Config, shard: int, engine: Engine, untested: bool) -> None:
        if engine.size % shard or engine.size == shard:
            raise UserError(f"--shard: {engine.size} ranks are not several pods of {shard}")
        make_repeatable(settings.train.seed)
        self.settings, self.shard, self.engine, self.untested = settings, shard, engine, untested
        section = settings.data
        dataset = data.build(section.name, section.root, **section.options)
        self.data = data.Shard(
            dataset, engine.ranks[0], engine.size, section.batch_size, section.eval_batch_size, settings.train.seed,
            engine.device,
        )  # fmt: skip
        self.whole = model_of(settings, dataset, engine.device)
        self.model: Any = copy.deepcopy(self.whole)
        pods = (engine.size // shard, shard)
        mesh = init_device_mesh(engine.device.type, pods, mesh_dim_names=("replicate", "shard"))
        shard_by_modules(self.model, mesh if _is_native(settings) else mesh["shard"])
        self.optimizer = build_optimizer(self.model, settings.optimizer)
        if settings.optimizer.name == "sgd":
            for group in self.optimizer.param_groups:
                group["fused"] = False  # PyTorch has no fused SGD for shards
        self.between = between(settings, self.model, self.optimizer, mesh)
        self.clock = Clock(engine.device, Timeline(engine.ranks[0]))
        self.steps = settings.train.max_steps or settings.train.epochs * self.data.steps_per_epoch
        self.warmup = settings.train.warmup_steps
        if not self.warmup < self.steps:
            raise UserError(f"train.max_steps: {self.steps} steps leave none after train.warmup_steps={self.warmup}")
        self._losses = torch.zeros(self.steps, dtype=torch.float64)

    def train(self) -> int:
        """Train, and write the record; returns the exit code."""
        engine, folder = self.engine, folder_of(self.settings, self.engine)
        with folder.kept():
            machines, load = hosts(engine), LoadMeter()
            record = record_of(self.settings, engine, folder, None, _note, machines)
            began = time.perf_counter()
            levels = self._steps()
            seconds = time.perf_counter() - began
            training = float(engine.sum_over_ranks([self._losses.mean().view(1)])) / engine.size
            finite = math.isfinite(training)
            final = self._evaluate() if finite and not self.untested else {}
            entry = {"epoch": (self.steps - 1) // self.data.steps_per_epoch,
                     "seconds": seconds, "loss": training, "top1": final.get("top1")}  # fmt: skip
            record.epoch(entry)
            kept = record.finish(
                "finished" if finite else "diverged", final={name: final.get(name) for name in ("loss", "top1")},
                seconds_total=seconds, load=load.loads(engine), **self._facts(), **self._measured(levels),
            )  # fmt: skip
            record.close()
        self.between.close()
        if engine.is_first:
            _tell(kept)
        return 0 if finite else Diverged.exit_code

    def _steps(self) -> dict[str, float] | None:
        """Make all steps; the bytes by level of a counted one."""
        clock, section, before = self.clock, self.settings.train, self._pause()
        batches: Iterator[tuple[Tensor, Tensor]] = iter(())
        clock.resume()
        for step in range(self.steps):
            if step == self.warmup:
                before = self._pause()
                clock.resume()
            epoch, first = divmod(step, self.data.steps_per_epoch)
            if not first:
                batches = self.data.train(epoch)
            with clock.phase("data"):
                inputs, labels = next(batches)
            self.optimizer.zero_grad()
            with clock.phase("forward"):
                loss = cross_entropy(self.model(inputs), labels, section.label_smoothing)
            with clock.phase("backward"):
                loss.backward()
            self._losses[step] = loss.detach()
            apply_learning_rate(self.optimizer, self._rate(step))
            with clock.phase("update"):
                self.between.update()
            clock.end_step(step, len(inputs), step >= self.warmup)
        return self._by_level(before, self._pause())

    def _rate(self, step: int) -> float:
        each = self.data.steps_per_epoch
        epochs = max(self.settings.train.epochs, self.steps / each)
        return learning_rate(self.settings.optimizer, step / each, epochs, self.engine.size)

    def _pause(self) -> LevelBytes | None:
        """When all ranks are here, what the links have carried so far."""
        self.clock.pause()
        self.engine.sum_over_ranks([torch.zeros(1)])
        return read_levels()

    def _by_level(self, before: LevelBytes | None, after: LevelBytes | None) -> dict[str, float] | None:
        """Bytes that a rank sends in a step, on average; None unless each pod has its own switch below the root."""
        if before is None or after is None or after.switches != self.engine.size // self.shard:
            return None
        parts = (self.steps - self.warmup) * self.engine.size
        up, sent = after.up - before.up, after.sent - before.sent
        return {"within": (sent - up) / parts, "between": up / parts}

    @torch.no_grad()
    def _evaluate(self) -> dict[str, float]:
        """Loss and share of right answers on the test set, each rank on its part of it with a whole model; {} without
        one.
        """
        if not self.data.dataset.test_size:
            return {}
        with self.between.view():
            self.whole.load_state_dict({name: _full(each) for name, each in self.model.state_dict().items()})
        self.whole.eval()
        totals = torch.zeros(3, dtype=torch.float64)
        for inputs, labels in self.data.test():
            logits, labels = row_by_row(logits_of(self.whole(inputs)).float(), labels)
            loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
            right = (logits.argmax(1) == labels).sum()
            totals += torch.tensor([loss.item(), right.item(), len(labels)], dtype=torch.float64)
        loss, right, count = self.engine.sum_over_ranks([totals]).tolist()
        return {"loss": loss / count, "top1": right / count}

    def _facts(self) -> dict[str, Any]:
        """The sizes of the model, of the data and of the job."""
        dataset, engine = self.data.dataset, self.engine
        samples = {"train": dataset.train_size, "test": dataset.test_size, "unit": unit_of(dataset)}
        if labels_of(dataset) > 1:
            samples["tokens"] = labels_of(dataset)
        return {
            "engine": engine.name, "backend": engine.backend, "device": engine.device.type, "gpu": None,
            "parameters": sum(each.numel() for each in self.whole.parameters()), "samples": samples,
            "steps_done": self.steps, "shards": self.shard,
        }  # fmt: skip

    def _measured(self, levels: dict[str, float] | None) -> dict[str, Any]:
        """Times, and bytes: `dense`, `payload` and `wire` are of the exchange between pods alone, of rank 0."""
        measured = summary(self.clock.drain(), self.engine.size)
        measured["phases"] |= dict.fromkeys(UNSEEN)
        told = self.between.report()
        sizes, ratios = told.get("bytes_per_step", {}), told.get("compression_ratio", {})
        mine = sum(local(each).numel() for each in self.model.parameters())
        return {
            **measured,
            "bytes_per_step": {
                "payload": sizes.get("payload"), "dense": sizes.get("dense", 4 * mine), "wire": sizes.get("wire"),
                "nic": None,
            },
            "compression_ratio": {"values": ratios.get("values"), "with_indices": ratios.get("with_indices"),
                                  "wire": None},
            "requests": told.get("requests", []),
            "messages": told.get("messages"),
            "levels": levels,
        }  # fmt: skip


def shard_by_modules(model: nn.Module, mesh: DeviceMesh) -> None:
    """Shard each module of the model's lists for itself, and the rest together."""
    for module in _members(model):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)


def _members(module: nn.Module) -> Iterator[nn.Module]:
    """The modules of its outermost lists that have parameters."""
    for child in module.children():
        if isinstance(child, nn.ModuleList | nn.Sequential):
            yield from (each for each in child if any(True for _ in each.parameters()))
        else:
            yield from _members(child)


def between(settings: Config, model: nn.Module, optimizer: Optimizer, mesh: DeviceMesh) -> BetweenPods:
    """What the config's compressor and scheduler are between pods."""
    method, scheduler, clip = compressor_of(settings), scheduler_of(settings), settings.optimizer.clip

    def clipped() -> None:
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)

    def update() -> None:
        clipped()
        optimizer.step()

    if _is_native(settings):
        return BetweenPods(update)
    collective = collective_of(settings)
    words = {"seed": settings.train.seed, "warmup_steps": settings.train.warmup_steps,
             "timeout_seconds": settings.engine.timeout_seconds}  # fmt: skip
    if scheduler.driver is Overlapped and not method.makes_update:
        replicas = wirebench.compress_replicas(
            model, method, mesh["replicate"], collective, scheduler=scheduler, **words
        )
        return BetweenPods(update, replicas.report, replicas.close)
    given = optimizer if scheduler.driver.updates else None
    group = mesh["replicate"].get_group()
    sync = wirebench.synchronise(model, method, scheduler, collective, optimizer=given, process_group=group, **words)

    def wait() -> None:
        sync.wait()
        update()

    def step() -> None:
        clipped()
        sync.step(optimizer)

    return BetweenPods(step if given else wait, sync.report, sync.close, sync.evaluation_view)


def _is_native(settings: Config) -> bool:
    """Whether FSDP sums over pods itself."""
    return issubclass(scheduler_of(settings).driver, EnginesOwn)


def _full(tensor: Any) -> Tensor:
    whole: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole


def _note(text: str) -> None:
    print(text, flush=True)


def _tell(record: dict[str, Any]) -> None:
    """The result in a line."""
    rate, batch = record["images_per_second"]["mean"], record["config"]["data"]["batch_size"] * record["world_size"]
    levels = record["levels"]
    sent = "" if levels is None else f", {levels['within'] / 1e6:.3g} MB within and {levels['between'] / 1e6:.3g} MB " \
        "between pods for a step and rank"  # fmt: skip
    loss = record["final"]["loss"]
    tested = "" if loss is None else f", loss {loss:.4f}"
    print(f"{record['status']}: {rate / batch:.4g} steps/s{sent}{tested}", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("bench pods", __doc__)
    parser.add_argument("config", nargs="?", default="tables/pods_gpt", help="what to train (%(default)s)")
    parser.add_argument("overrides", nargs="*", default=[], metavar="section.key=value", help="of the config")
    parser.add_argument("--shard", type=_positive, default=2, metavar="N", help="ranks of a pod (%(default)s)")
    parser.add_argument("--untested", action="store_true", help="leave out the evaluation after the last step")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"needs at least 1, got {number}")
    return number
