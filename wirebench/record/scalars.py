"""TensorBoard's view of a run: its scalars, its config as text, and its settings among the HParams.

The events of a run are in FOLDER/tb/METHOD. TensorBoard names runs by their folders, so the name shows the method.
"""

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COMPOSITION = ("model", "data", "compressor", "scheduler", "collective", "engine", "optimizer", "train")
"""Sections of a config whose keys are HParams."""
TELLING = ("density", "rank", "bits")
"""Options that stand in a method's name."""


def method(config: Mapping[str, Any]) -> str:
    """A name for what is composed, fit for a folder: topk-density=0.01,fused,ring. `config` is nested tables."""
    compressor = config["compressor"]
    options = [f"{key}={compressor[key]}" for key in TELLING if key in compressor]
    parts = ("-".join([compressor["name"], *options]), config["scheduler"]["name"], config["collective"]["name"])
    return ",".join(filter(None, parts))


def settings(config: Mapping[str, Any], world_size: int) -> dict[str, float | str]:
    """The keys of a config that say something, flat: numbers and words, as HParams are."""
    hparams: dict[str, float | str] = {"world_size": world_size}
    for section in COMPOSITION:
        for key, value in config.get(section, {}).items():
            if isinstance(value, bool) or not isinstance(value, int | float):
                value = str(value)
            if value not in ("", "[]", "None"):
                hparams[f"{section}.{key}"] = value
    return hparams


class Scalars:
    """The events of one run; the file is made at the first of them.

    directory    FOLDER/tb
    config       nested tables; config_toml is the same as text
    """

    def __init__(self, directory: Path, config: Mapping[str, Any], config_toml: str, world_size: int) -> None:
        self._directory = directory / method(config)
        self._text = f"```toml\n{config_toml}```"
        self._settings = settings(config, world_size)
        self._writer: Any = None
        self._hook = threading.excepthook

    def add(self, scalars: Mapping[str, Any], step: int, first_step: int) -> None:
        """Write the numbers among `scalars`; an older run's from `first_step` on are hidden."""
        if self._writer is None:
            self._open(first_step)
        for name, value in scalars.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, step)

    def _open(self, first_step: int) -> None:
        # Imported here: it takes a second, and reading records does not need it.
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams

        # A resumed run has said what it is.
        known = first_step > 0 and any(self._directory.glob("events.*"))
        self._hook = threading.excepthook
        threading.excepthook = self._on_thread_error
        self._writer = SummaryWriter(str(self._directory), purge_step=first_step, flush_secs=10)
        if known:
            return
        self._writer.add_text("config", self._text, first_step)
        # Not add_hparams, which opens a file of its own. Of its three parts the first, a list of names and metrics, is
        # left out: TensorBoard would take that of one run for all; so it gathers it from the runs that it shows.
        _, start, _ = hparams(self._settings, {})
        self._writer.file_writer.add_summary(start, first_step)

    def close(self) -> None:
        """Flush and close; may be called again."""
        if self._writer is not None:
            threading.excepthook = self._hook
            self._writer.close()

    def _on_thread_error(self, about: threading.ExceptHookArgs) -> None:
        """TensorBoard's thread shows a full disk as a traceback; `add` and `close` raise the same error."""
        if type(about.thread).__name__ != "_AsyncWriterThread" or not isinstance(about.exc_value, OSError):
            self._hook(about)


class NoScalars:
    """Stands in where output.tensorboard is false."""

    def add(self, scalars: Mapping[str, Any], step: int, first_step: int) -> None:
        """Write nothing."""

    def close(self) -> None:
        """Nothing to close."""
