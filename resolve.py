"""Complete a config: options written out, what the compressor's paper asks for filled in, and nonsense refused."""

import dataclasses
from collections.abc import Sequence

import compressors
import models
import schedulers
from compressors.base import Compressor, Method
from schedulers.base import Scheduler
from wirebench import collectives, data
from wirebench.config import AS_THE_PAPER, Config
from wirebench.errors import UserError

KINDS = (models.PLUGINS, data.PLUGINS, compressors.PLUGINS, schedulers.PLUGINS, collectives.PLUGINS)
ENGINES_OWN = "native"


def resolve(given: Config) -> Config:
    """The config with every choice and every plugin's options written out; UserError for what makes no sense."""
    resolved = _with_defaults(_as_the_paper(given))
    if resolved.train.resume == "auto" and not resolved.output.dir:
        raise UserError("train.resume: auto looks into output.dir; set that too")
    if resolved.network.dilation != 1 and not hasattr(models.PLUGINS.load(resolved.model.name), "dilation"):
        raise UserError(
            f"network.dilation: only a replayed model can be slowed down; model.name is {resolved.model.name!r}"
        )
    names = (resolved.compressor.name, resolved.collective.name)
    native = scheduler_of(resolved).mode == "native"
    if native and names != ("none", ENGINES_OWN):
        raise UserError(
            "scheduler.name: 'native' is the engine's own synchroniser, dense and with its own collective; "
            f"it goes with compressor.name = none and collective.name = native, not {names[0]} and {names[1]}"
        )
    if resolved.scheduler.profile and not scheduler_of(resolved).needs_profile:
        raise UserError(f"scheduler.profile: {resolved.scheduler.name!r} weighs no times")
    if native and resolved.output.health_every:
        raise UserError("output.health_every: 'native' is the engine's own synchroniser, with nothing to look into")
    if compressor_of(resolved).owns_momentum and resolved.optimizer.momentum:
        raise UserError(f"optimizer.momentum: {resolved.compressor.name!r} applies momentum itself; set it to 0")
    return resolved


def refuse_cut(settings: Config, groups: Sequence[range]) -> None:
    """UserError where a scheduler cuts the model into several buckets and the compressor needs it whole."""
    reason = getattr(compressor_of(settings), "whole_model", "")
    if reason and len(groups) > 1:
        raise UserError(
            f"scheduler.name: {settings.scheduler.name!r} cuts the model into {len(groups)} buckets, but "
            f"{settings.compressor.name!r} needs it whole: {reason}; sync_easgd sends one message"
        )


def compressor_of(settings: Config) -> Compressor:
    """A fresh compressor, in its wrappers."""
    section = settings.compressor
    return compressors.build(
        section.name, dense_below=max(section.dense_below, 0), warmup=section.warmup, **section.options
    )


def scheduler_of(settings: Config) -> Scheduler:
    """The scheduler."""
    return schedulers.build(settings.scheduler.name, **settings.scheduler.options)


def _as_the_paper(given: Config) -> Config:
    """What the config leaves to the compressor: its collective, what it sends dense, and who applies the momentum.

    A method that corrects the momentum takes over the optimizer's, unless the config gives it one of its own.
    """
    section = given.compressor
    compressors.PLUGINS.check(section.name, section.options)
    paper = compressors.PLUGINS.load(section.name)
    if not given.collective.name:
        name = getattr(paper, "collective", Method.collective) or ENGINES_OWN
        given = dataclasses.replace(given, collective=dataclasses.replace(given.collective, name=name))
    if section.dense_below == AS_THE_PAPER:
        section = dataclasses.replace(section, dense_below=compressors.dense_below_of(section.name))
    takes = compressors.PLUGINS.options(section.name).keys() - section.options.keys()
    optimizer = given.optimizer
    if optimizer.momentum and "momentum" in takes and compressor_of(given).owns_momentum:
        if optimizer.nesterov and "nesterov" not in compressors.PLUGINS.options(section.name):
            raise UserError(f"optimizer.nesterov: {section.name!r} applies the momentum itself, and not Nesterov's")
        moved: dict[str, object] = {"momentum": optimizer.momentum}
        if "nesterov" in takes:
            moved["nesterov"] = optimizer.nesterov
        section = dataclasses.replace(section, options={**section.options, **moved})
        optimizer = dataclasses.replace(optimizer, momentum=0.0, nesterov=False)
    return dataclasses.replace(given, compressor=section, optimizer=optimizer)


def _with_defaults(given: Config) -> Config:
    sections = {}
    for kind in KINDS:
        section = getattr(given, kind.kind)
        kind.check(section.name, section.options)
        options = {**kind.defaults(section.name), **section.options}
        sections[kind.kind] = dataclasses.replace(section, options=options)
    return dataclasses.replace(given, **sections)
