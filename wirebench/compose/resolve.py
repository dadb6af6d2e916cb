"""Complete a config: options written out, what the compressor's paper asks for filled in, and nonsense refused."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from wirebench import collectives, compressors, data, models, schedulers
from wirebench.compose.papers import refuse_names
from wirebench.compressors.common.clipped import Clipped
from wirebench.config import requested
from wirebench.config.loader import AS_THE_PAPER, Config, OptimizerConfig, to_dict
from wirebench.dropin.assembly import ENGINES_OWN, IN_TWO_HALVES, collective_name, refuse_groups
from wirebench.errors import UserError
from wirebench.gradient.contract import Method, Scheduler
from wirebench.gradient.schedule import OuterRule


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
    if scheduler_of(resolved).mode == "split" and resolved.collective.name == ENGINES_OWN:
        raise UserError(
            f"collective.name: {resolved.scheduler.name!r} runs the halves of a plan apart, and "
            f"the engine's own has none; {IN_TWO_HALVES} is its default"
        )
    if scheduler_of(resolved).mode == "elastic" and (names[0] != "none" or resolved.output.health_every):
        raise UserError(
            f"scheduler.name: {resolved.scheduler.name!r} sends weights, not gradients; it goes with compressor.name = "
            f"none and output.health_every = 0, not {names[0]} and {resolved.output.health_every}"
        )
    if scheduler_of(resolved).mode == "outer":
        _check_outer(resolved)
    if resolved.scheduler.profile and not scheduler_of(resolved).needs_profile:
        raise UserError(f"scheduler.profile: {resolved.scheduler.name!r} weighs no times")
    if native and resolved.output.health_every:
        raise UserError("output.health_every: 'native' is the engine's own synchroniser, with nothing to look into")
    if resolved.optimizer.clip and scheduler_of(resolved).mode == "split":
        raise UserError(
            f"optimizer.clip: {resolved.scheduler.name!r} updates layers before the whole gradient's norm is known"
        )
    _check_update(resolved)
    return dataclasses.replace(resolved, asked=requested.difference(to_dict(given), to_dict(resolved)))


def _check_outer(settings: Config) -> None:
    """UserError for what does not go with exchanges of weights' differences."""
    if compressor_of(settings).owns_momentum:
        raise UserError(
            f"scheduler.name: {settings.scheduler.name!r} has an outer optimizer, and "
            f"{settings.compressor.name!r} applies a momentum to what it is given{_without_momentum(settings, '; set')}"
        )
    if settings.output.health_every:
        raise UserError(f"output.health_every: {settings.scheduler.name!r} exchanges no gradients to look into")


def _check_update(settings: Config) -> None:
    """UserError for an optimizer that does a part of the compressor's work once more."""
    compressor, name = compressor_of(settings), settings.compressor.name
    if compressor.owns_momentum and settings.optimizer.momentum:
        raise UserError(f"optimizer.momentum: {name!r} applies momentum itself; set it to 0")


def _without_momentum(settings: Config, words: str) -> str:
    """How the compressor does without a momentum, after these words; nothing where it cannot."""
    return (
        f"{words} compressor.momentum=0" if "momentum" in compressors.PLUGINS.options(settings.compressor.name) else ""
    )


def notes(given: Config, steps: int, steps_per_epoch: int) -> list[str]:
    """Notes on a config, or on a run of `steps` steps, that may surprise the user; one line each."""
    return [
        *_own_momentum(given), *_last_round(scheduler_of(given), steps), *_warming(given, steps, steps_per_epoch),
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


def _last_round(scheduler: Scheduler, steps: int) -> list[str]:
    """That the local steps at a run's end are in no mean that was applied, and so in no evaluation."""
    if scheduler.mode != "outer":
        return []
    rule = cast(OuterRule, scheduler)
    lasts = [_last_applied(rule, fragment, steps) for fragment in range(rule.fragments)]
    if None in lasts:
        delay = f" and scheduler.delay={rule.delay}" if rule.delay else ""
        few = f"{steps} steps are too few for scheduler.every={rule.every}{delay}"
        part = "a part of the model" if any(last is not None for last in lasts) else "the model"
        return [f"note: {few}: no mean of {part} is applied, and it is evaluated as it began"]
    left = max(steps - 1 - last for last in lasts if last is not None)
    what = f"the last {left} of {steps} steps are in no mean that is applied (scheduler.every={rule.every})"
    return [f"note: {what}, and in no evaluation"] if left else []


def _last_applied(rule: OuterRule, fragment: int, steps: int) -> int | None:
    """The last step after which the fragment is sent and still applied within `steps` steps; None without one."""
    sent = range(steps - 1 - rule.delay, max(steps - 1 - rule.delay - rule.every, -1), -1)
    return next((step for step in sent if rule.starts(fragment, step)), None)


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
        name = collective_name(paper, scheduler_of(given))
        given = dataclasses.replace(given, collective=dataclasses.replace(given.collective, name=name))
    if section.dense_below == AS_THE_PAPER:
        section = dataclasses.replace(section, dense_below=paper.dense_below)
    takes = compressors.PLUGINS.options(section.name).keys() - section.options.keys()
    optimizer = given.optimizer
    if paper.makes_update:
        _check_plain(section.name, optimizer)
    if optimizer.name != "sgd" and compressor_of(given).owns_momentum:
        raise UserError(
            f"optimizer.name: {section.name!r} applies the momentum itself, in place of sgd's; "
            f"set optimizer.name=sgd{_without_momentum(given, f', or with {optimizer.name} set')}"
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
