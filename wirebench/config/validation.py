"""What the values of a config may be, beyond their types: least and greatest values, and values that must agree."""

from wirebench.config.sections import AS_THE_PAPER, Config
from wirebench.errors import UserError

_LEAST = {
    "data.batch_size": 1,
    "data.eval_batch_size": 0,
    "compressor.dense_below": AS_THE_PAPER,
    "engine.workers": 0,
    "engine.threads": 0,
    "optimizer.lr": 0,
    "optimizer.momentum": 0,
    "optimizer.beta2": 0,
    "optimizer.clip": 0,
    "optimizer.weight_decay": 0,
    "optimizer.warmup_epochs": 0,
    "train.epochs": 1,
    "train.max_steps": 0,
    "train.accumulation": 1,
    "train.label_smoothing": 0,
    "train.warmup_steps": 0,
    "train.eval_every": 0,
    "train.checkpoint_every_steps": 0,
    "train.checkpoint_every_epochs": 0,
    "train.keep": 1,
    "output.trace_steps": 0,
    "output.health_every": 0,
    "network.straggler": 1,
}
_GREATEST = {
    "train.label_smoothing": 1,
    "engine.timeout_seconds": 86_400,
    "engine.threads": 4_096,
    "engine.workers": 65_536,
}
_POSITIVE = ("engine.timeout_seconds", "network.dilation", "optimizer.eps")


def check(config: Config) -> None:
    """Raise UserError, naming the key, for a value out of its limits or one that contradicts another."""
    for key, least in _LEAST.items():
        if (value := _value(config, key)) < least:
            raise UserError(f"{key}: needs at least {least}, got {value}")
    for key, greatest in _GREATEST.items():
        if (value := _value(config, key)) > greatest:
            raise UserError(f"{key}: needs at most {greatest}, got {value}")
    for key in _POSITIVE:
        if (value := _value(config, key)) <= 0:
            raise UserError(f"{key}: needs more than 0, got {value}")
    batch_size, parts = config.data.batch_size, config.train.accumulation
    if batch_size % parts:
        raise UserError(f"train.accumulation: {parts} does not divide data.batch_size = {batch_size}")
    if any(not 0 < density <= 1 for density in config.compressor.warmup):
        raise UserError(f"compressor.warmup: densities lie in (0, 1], got {list(config.compressor.warmup)}")


def _value(config: Config, key: str) -> float:
    section, _, name = key.partition(".")
    value: float = getattr(getattr(config, section), name)
    return value
