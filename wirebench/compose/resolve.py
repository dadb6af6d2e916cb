"""Complete a config: options written out, what the compressor's paper asks for filled in, and nonsense refused."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from wirebench import collectives, compressors, data, models, schedulers
from wirebench.collectives.plan import Collective
from wirebench.compose.papers import refuse_names
from wirebench.compressors.bits.coded import code_of
from wirebench.compressors.common.clipped import Clipped
from wirebench.config import requested
from wirebench.config.loader import AS_THE_PAPER, Config, OptimizerConfig, to_dict
from wirebench.errors import UserError
from wirebench.exchange.driver import GRADIENTS, Parts, refuse_wire
from wirebench.exchange.scheduler import Scheduler, refuse_groups
from wirebench.gradient.contract import Method


def _words(optimizer: Mapping[str, Any]) -> list[str]:
    """Overrides that make these the optimizer's settings."""
    as_text = {
        key: f"{value:g}" if isinstance(value, float) else f"{value}".lower() for key, value in optimizer.items()
    }
    return [f"optimizer.{key}={text}" for key, text in as_text.items()]


PLAIN = {
    "name": "sgd", "momentum": 0.0, "nesterov": False, "clip": 0.0,
    "beta2": OptimizerConfig.beta2, "eps": OptimizerConfig.eps,
}  # fmt: skip
"""The optimizer that goes with updates, which may be clipped."""
PLAIN_SGD = tuple(_words(PLAIN))
"""Overrides that make any optimizer section that one; the rate is the compressor's own matter."""
MOSTLY = 0.5
"""Share of a run's steps from which on the warm-up counts as most of the run."""
KINDS = (models.PLUGINS, data.PLUGINS, compressors.PLUGINS, schedulers.PLUGINS, collectives.PLUGINS)


def resolve(given: Config) -> Config:
    """The config with every choice and every plugin's options written out; UserError for what makes no sense."""
    refuse_names(given)
    resolved = _with_defaults(_as_the_paper(given))
    if resolved.train.resume == "auto" and not resolved.output.dir:
        raise UserError("train.resume: auto looks into output.dir; set that too")
    for key in ("dilation", "straggler"):
        slowed = getattr(resolved.network, key) != 1
        if slowed and not hasattr(models.PLUGINS.load(resolved.model.name), "dilation"):
            raise UserError(
                f"network.{key}: only a replayed model can be slowed down; model.name is {resolved.model.name!r}"
            )
    _check_driver(resolved)
    if resolved.scheduler.profile and not scheduler_of(resolved).needs_profile:
        raise UserError(f"scheduler.profile: {resolved.scheduler.name!r} does not use profiles")
    _check_update(resolved)
    return dataclasses.replace(resolved, asked=requested.difference(to_dict(given), to_dict(resolved)))


def _check_driver(settings: Config) -> None:
    """UserError for what does not go with the scheduler's driver."""
    parts = Parts(
        compressor_of(settings), collective_of(settings), settings.optimizer.clip, settings.output.health_every
    )
    refuse_wire(parts.compressor, parts.collective)
    if reason := scheduler_of(settings).driver.accepts(parts):
        raise UserError(f"scheduler.name: {settings.scheduler.name!r} {reason}")
    driver = scheduler_of(settings).driver
    if settings.engine.cuda_graphs and not (driver.messages and driver.exchanges == GRADIENTS):
        raise UserError(
            f"engine.cuda_graphs: only exchanges of gradients are captured, and {settings.scheduler.name!r} has others"
        )


def _check_update(settings: Config) -> None:
    """UserError for an optimizer that does a part of the compressor's work once more."""
    compressor, name = compressor_of(settings), settings.compressor.name
    if compressor.owns_momentum and settings.optimizer.momentum:
        raise UserError(f"optimizer.momentum: {name!r} applies momentum itself; set it to 0")


def notes(given: Config, steps: int, steps_per_epoch: int) -> list[str]:
    """Notes on a config, or on a run of `steps` steps, that may surprise the user; one line each."""
    scheduler = scheduler_of(given)
    return [
        *_own_momentum(given), *scheduler.driver.notes(scheduler, steps), *_warming(given, steps, steps_per_epoch),
        *_short(given.model.options.get("context"), given.data.options.get("length")),
    ]  # fmt: skip


def _short(context: object, length: object) -> list[str]:
    """That a language model never sees as many tokens as it could look back on."""
    if not isinstance(context, int) or not isinstance(length, int) or length >= context:
        return []
    return [f"note: sequences have {length} tokens (data.length), and the model takes {context} (model.context)"]


def _warming(given: Config, steps: int, steps_per_epoch: int) -> list[str]:
    """That a run which `max_steps` ends is in its warm-up for most of the time: rates go by whole epochs."""
    warmup, whole = given.optimizer.warmup_epochs * steps_per_epoch, given.train.epochs * steps_per_epoch
    if steps >= whole or warmup < MOSTLY * steps:
        return []
    rises = f"the learning rate rises over {warmup:.0f} steps"
    why = f"(optimizer.warmup_epochs = {given.optimizer.warmup_epochs:g})"
    return [f"note: {rises} {why}, and this run ends after {steps} of {whole}"]


def _own_momentum(given: Config) -> list[str]:
    section = given.compressor
    left_open = compressors.PLUGINS.defaults(section.name).keys() - section.options.keys()
    if given.optimizer.momentum or "momentum" not in left_open or not compressor_of(given).owns_momentum:
        return []
    default = compressors.PLUGINS.defaults(section.name)["momentum"]
    return [
        f"note: {section.name} applies its own momentum, {default:g}, although optimizer.momentum = 0; "
        "compressor.momentum=0 trains without"
    ]


def refuse_cut(settings: Config, groups: Sequence[range]) -> None:
    """UserError where a scheduler cuts the model into several buckets and the compressor needs it whole."""
    refuse_groups(compressor_of(settings), settings.compressor.name, settings.scheduler.name, groups)


def refuse_workers(settings: Config) -> None:
    """UserError where the compressor asks for another number of workers; `engine.workers` is their number."""
    workers, method = settings.engine.workers, compressor_of(settings)
    voters, divides = method.voters, method.divides
    # One worker alone exchanges nothing, so it needs no voters.
    if 1 < workers < voters:
        raise UserError(f"compressor.voters: {voters} are more than the {workers} workers")
    # An elastic run cannot choose its number of workers.
    if workers > 1 and divides and workers % divides and not settings.train.elastic:
        raise UserError(f"compressor.group: groups of {divides} do not divide the {workers} workers")


def compressor_of(settings: Config) -> Method:
    """A fresh compressor, in its wrappers."""
    section, clip = settings.compressor, settings.optimizer.clip
    method = compressors.build(
        section.name, dense_below=max(section.dense_below, 0), warmup=section.warmup, **section.options
    )
    return Clipped(method, clip) if clip and method.makes_update else method


def collective_of(settings: Config) -> Collective:
    """The collective, with its wire formats."""
    section = settings.collective
    between, within = (code_of(getattr(section, key), f"collective.{key}") for key in ("wire", "wire_within"))
    return collectives.formatted(collectives.build(section.name, **section.options), between, within)


def optimizer_for(name: str) -> tuple[str, ...]:
    """Overrides that a compressor of this name asks of the optimizer: PLAIN_SGD where it returns updates, or none."""
    return PLAIN_SGD if compressors.class_of(name).makes_update else ()


def method_of(settings: Config) -> Method:
    """A fresh compressor without wrappers."""
    return compressors.build(settings.compressor.name, **settings.compressor.options)


def scheduler_of(settings: Config) -> Scheduler:
    """The scheduler."""
    return schedulers.build(settings.scheduler.name, **settings.scheduler.options)


def _as_the_paper(given: Config) -> Config:
    """Fill in the options that the compressor decides: its collective, its dense tensors, and who applies the momentum.

    A method that corrects the momentum takes over the optimizer's, unless the config gives it one of its own.
    """
    section = given.compressor
    paper = method_of(given)
    if not given.collective.name:
        name = paper.collective or scheduler_of(given).driver.collective
        given = dataclasses.replace(given, collective=dataclasses.replace(given.collective, name=name))
    if section.dense_below == AS_THE_PAPER:
        section = dataclasses.replace(section, dense_below=paper.dense_below)
    takes = compressors.PLUGINS.options(section.name).keys() - section.options.keys()
    optimizer = given.optimizer
    if paper.makes_update:
        _check_plain(section.name, optimizer)
    if optimizer.name != "sgd" and compressor_of(given).owns_momentum:
        has_one = "momentum" in compressors.PLUGINS.options(section.name)
        raise UserError(
            f"optimizer.name: {section.name!r} applies the momentum itself, in place of sgd's; set optimizer.name=sgd"
            + (f", or with {optimizer.name} set compressor.momentum=0" if has_one else "")
        )
    if optimizer.momentum and "momentum" in takes and compressor_of(given).owns_momentum:
        if optimizer.nesterov and "nesterov" not in compressors.PLUGINS.options(section.name):
            raise UserError(f"optimizer.nesterov: {section.name!r} applies the momentum itself, and not Nesterov's")
        moved: dict[str, object] = {"momentum": optimizer.momentum}
        if "nesterov" in takes:
            moved["nesterov"] = optimizer.nesterov
        section = dataclasses.replace(section, options={**section.options, **moved})
        optimizer = dataclasses.replace(optimizer, momentum=0.0, nesterov=False)
    return dataclasses.replace(given, compressor=section, optimizer=optimizer)


def _check_plain(name: str, optimizer: OptimizerConfig) -> None:
    """UserError that names all that keeps the optimizer from being plain SGD, beside a compressor of this name."""
    other = _words({key: value for key, value in PLAIN.items() if getattr(optimizer, key) != value and key != "clip"})
    if other:
        raise UserError(f"optimizer: {name!r} returns updates, which plain SGD applies; set {' '.join(other)}")


def _with_defaults(given: Config) -> Config:
    sections = {}
    for kind in KINDS:
        section = getattr(given, kind.kind)
        kind.check(section.name, section.options)
        options = {**kind.defaults(section.name), **section.options}
        sections[kind.kind] = dataclasses.replace(section, options=options)
    return dataclasses.replace(given, **{**sections, **_as_long(given, sections["model"], sections["data"])})


def _as_long(given: Config, model: Any, dataset: Any) -> dict[str, Any]:
    """A language model's `context` and its data's `length`: the one that is left out is the other one."""
    context, length = given.model.options.get("context"), given.data.options.get("length")
    if "context" not in model.options or "length" not in dataset.options or (context is None) == (length is None):
        return {}
    if length is None:
        return {"data": dataclasses.replace(dataset, options={**dataset.options, "length": context})}
    return {"model": dataclasses.replace(model, options={**model.options, "context": length})}
