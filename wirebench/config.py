"""What a run is: frozen sections read from TOML, overridden by `section.key=value`, dumped with every choice resolved.

Sections that name a plugin ([model], [data], [compressor], [scheduler], [collective]) hand the keys that are not listed
here to the plugin's constructor, which declares their names and types.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import tomli_w

from wirebench.errors import UserError
from wirebench.plugins import check_type, suggest


@dataclass(frozen=True)
class ModelConfig:
    """[model]: `name` is a file of models/; its options follow."""

    name: str = "resnet_cifar"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataConfig:
    """[data]: the data set; its options follow.

    root             folder of the data, where the set has one
    batch_size       images per worker and step
    eval_batch_size  images per worker and evaluation batch; 0: twice the training batch
    """

    name: str = "digits"
    root: str = ""
    batch_size: int = 32
    eval_batch_size: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CompressorConfig:
    """[compressor]: the gradient compressor; its options follow.

    dense_below  tensors with one dimension or with fewer elements than this are sent dense; 0: off
    warmup       densities of the first epochs, e.g. [0.25, 0.0625]; empty: off
    """

    name: str = "none"
    dense_below: int = 0
    warmup: tuple[float, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SchedulerConfig:
    """[scheduler]: what is merged into one message, and when; its options follow."""

    name: str = "wfbp"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CollectiveConfig:
    """[collective]: the all-reduce algorithm; its options follow. `native` is the engine's own."""

    name: str = "native"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class EngineConfig:
    """[engine]: who moves the bytes.

    name             auto (from the launcher's environment), local, torch or horovod
    workers          world size; 0: what the launcher started, 4 virtual workers without one
    timeout_seconds  after this long without an answer a peer counts as lost
    rounds           how a Horovod job runs the rounds of a plan: p2p (torch.distributed beside it) or alltoall
    threads          threads per process; 0: cores of the machine divided by its workers
    device           auto, cpu or cuda
    """

    name: Literal["auto", "local", "torch", "horovod"] = "auto"
    workers: int = 0
    timeout_seconds: float = 60.0
    rounds: Literal["p2p", "alltoall"] = "p2p"
    threads: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True)
class OptimizerConfig:
    """[optimizer]: SGD and its learning-rate schedule.

    lr             base rate; multiplied by the number of workers if scale_lr
    decay_norm     false: weight decay leaves biases and normalisation (one-dimensional tensors) alone
    schedule       constant, step (times gamma at each epoch of milestones), cosine, one_cycle
    warmup_epochs  linear rise from lr / workers (from 0 with one worker) over this many epochs; one_cycle: length of the rise
    """

    lr: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    decay_norm: bool = True
    schedule: Literal["constant", "step", "cosine", "one_cycle"] = "constant"
    milestones: tuple[float, ...] = ()
    gamma: float = 0.1
    warmup_epochs: float = 0.0
    scale_lr: bool = False


@dataclass(frozen=True)
class TrainConfig:
    """[train]: the loop.

    max_steps                stop after this many steps; 0: after `epochs`
    accumulation             micro-batches per step; must divide data.batch_size
    precision                fp32, or bf16 autocast
    warmup_steps             steps that throughput and phase times leave out
    eval_every               epochs between evaluations; 0: only at the end
    checkpoint_every_steps   0: off; checkpoint_every_epochs likewise; keep: how many checkpoints stay
    resume                   "": no; auto: the newest good checkpoint of output.dir; or a path
    """

    epochs: int = 1
    max_steps: int = 0
    seed: int = 0
    resume: str = ""
    accumulation: int = 1
    label_smoothing: float = 0.0
    precision: Literal["fp32", "bf16"] = "fp32"
    channels_last: bool = False
    warmup_steps: int = 5
    eval_every: int = 1
    checkpoint_every_steps: int = 0
    checkpoint_every_epochs: int = 0
    keep: int = 2


@dataclass(frozen=True)
class NetworkConfig:
    """[network]: `interface` whose kernel counters are read; empty: found by itself.

    dilation  how many times slower than life an emulated cluster runs (its links and its replayed compute alike)
    """

    interface: str = ""
    dilation: float = 1.0


@dataclass(frozen=True)
class OutputConfig:
    """[output]: `dir` of this run (empty: results/runs/NAME-TIME-HASH) and what goes into it.

    trace_steps  steps drawn in trace.json, counted after the warm-up
    """

    dir: str = ""
    tensorboard: bool = True
    trace_steps: int = 10


@dataclass(frozen=True)
class ExpectedConfig:
    """[expected]: what this configuration gave where it was measured; printed beside what a run gives."""

    top1: float = 0.0
    images_per_second: float = 0.0
    seconds: float = 0.0
    machine: str = ""


@dataclass(frozen=True)
class Config:
    """One run. `name` is the file's name without its ending."""

    name: str = "run"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    compressor: CompressorConfig = field(default_factory=CompressorConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    collective: CollectiveConfig = field(default_factory=CollectiveConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    network: NetworkConfig = field(default_factory=NetworkConfig)
    output: OutputConfig = field(default_factory=OutputConfig)
    expected: ExpectedConfig = field(default_factory=ExpectedConfig)


SECTIONS: dict[str, type] = {
    f.name: typing.get_type_hints(Config)[f.name] for f in dataclasses.fields(Config) if f.name != "name"
}


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a TOML file and apply `section.key=value` overrides; UserError says what is wrong and where."""
    path = Path(path)
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a text file") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
    name = table.pop("name", path.stem)
    check_type("name", name, str)
    for text in overrides:
        _override(table, text)
    return from_dict(table, name)


def from_dict(table: Mapping[str, Any], name: str = "run") -> Config:
    """A Config from nested tables, every key and type checked."""
    sections = {}
    for section, keys in table.items():
        if section not in SECTIONS:
            raise UserError(f"{section}: no such section; {suggest(section, list(SECTIONS))}")
        if not isinstance(keys, Mapping):
            raise UserError(f"{section}: is a section ([{section}] with keys below it), got {keys!r}")
        sections[section] = _section(section, keys)
    return _checked(Config(name=name, **sections))


def to_dict(config: Config) -> dict[str, Any]:
    """Nested tables that `from_dict` reads back; options stand beside their section's keys."""
    tables: dict[str, Any] = {"name": config.name}
    for section in SECTIONS:
        values = dataclasses.asdict(getattr(config, section))
        values.update(values.pop("options", {}))
        tables[section] = {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}
    return tables


def dump(config: Config) -> str:
    """The config as TOML text, every key written out: reading it back repeats the run."""
    return tomli_w.dumps(to_dict(config))


def _section(section: str, keys: Mapping[str, Any]) -> Any:  # noqa: ANN401 - one of the section classes
    kind = SECTIONS[section]
    hints = typing.get_type_hints(kind)
    takes_options = hints.pop("options", None) is not None
    known, options = {}, {}
    for key, value in keys.items():
        if key in hints:
            check_type(f"{section}.{key}", value, hints[key])
            known[key] = _as_field(value, hints[key])
        elif takes_options:
            options[key] = value
        else:
            raise UserError(f"{section}.{key}: no such key; {suggest(key, list(hints))}")
    return kind(**known, options=options) if takes_options else kind(**known)


def _as_field(value: Any, hint: Any) -> Any:  # noqa: ANN401 - any TOML value
    if isinstance(value, list):
        return tuple(value)
    return float(value) if hint is float else value


def _override(table: dict[str, Any], text: str) -> None:
    key, equals, value = text.partition("=")
    section, dot, name = key.partition(".")
    if not equals or not dot or not name:
        raise UserError(f"{text!r}: an override is section.key=value, e.g. train.max_steps=20")
    keys = table.setdefault(section, {})
    if not isinstance(keys, dict):
        raise UserError(f"{section}: is a section ([{section}] with keys below it), got {keys!r}")
    keys[name] = _parse(value)


def _parse(text: str) -> Any:  # noqa: ANN401 - any TOML value
    """A TOML value where the text is one, else the text itself: names and paths need no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


_MINIMA = {
    "data.batch_size": 1, "data.eval_batch_size": 0, "compressor.dense_below": 0, "engine.workers": 0,
    "engine.threads": 0, "optimizer.lr": 0, "optimizer.momentum": 0, "optimizer.weight_decay": 0,
    "optimizer.warmup_epochs": 0, "train.epochs": 1, "train.max_steps": 0, "train.accumulation": 1,
    "train.label_smoothing": 0, "train.warmup_steps": 0, "train.eval_every": 0, "train.keep": 1,
    "train.checkpoint_every_steps": 0, "train.checkpoint_every_epochs": 0, "output.trace_steps": 0,
}  # fmt: skip


def _checked(config: Config) -> Config:
    for key, least in _MINIMA.items():
        section, name = key.split(".")
        value = getattr(getattr(config, section), name)
        if not value >= least:
            raise UserError(f"{key}: needs at least {least}, got {value}")
    if config.engine.timeout_seconds <= 0:
        raise UserError(f"engine.timeout_seconds: needs more than 0, got {config.engine.timeout_seconds}")
    if config.data.batch_size % config.train.accumulation:
        raise UserError(
            f"train.accumulation: {config.train.accumulation} does not divide data.batch_size = {config.data.batch_size}"
        )
    if any(not 0 < density <= 1 for density in config.compressor.warmup):
        raise UserError(f"compressor.warmup: densities lie in (0, 1], got {list(config.compressor.warmup)}")
    if config.network.dilation != 1 and config.model.name != "replay":
        raise UserError("network.dilation: only a replayed model can be slowed down; leave it at 1")
    return config
