"""What a run leaves behind: config.toml, steps.jsonl while it runs, record.json when it ends, TensorBoard scalars.

A folder without record.json holds a run that has not ended, or that was killed. All JSON is strict: a number that is
not finite is written as null.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from wirebench.config import loader as configuration
from wirebench.errors import Unwritable, UserError
from wirebench.record import edition
from wirebench.record.archive import set_damaged_aside
from wirebench.record.folder_lock import FolderLock
from wirebench.record.scalars import NoScalars, Scalars
from wirebench.record.schema import SCHEMA, STATUSES, problems
from wirebench.record.steps_file import open_steps
from wirebench.telemetry.step_stats import StepTimes
from wirebench.utils.files import check_output, keeping, remove, write_atomically
from wirebench.utils.parsing import json_of

RUNS = Path("results/runs")
TESTED = ("top1", "top5", "perplexity", "bits_per_byte")
"""What an evaluation adds to an epoch's entry."""


def run_directory(config: configuration.Config, utc_now: datetime, root: str | Path = RUNS) -> Path:
    """`output.dir`, or root/NAME-TIME-HASH: the UTC time to the second and a hash of the whole config."""
    if config.output.dir:
        return Path(config.output.dir)
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", config.name).strip(".-") or "run"
    digest = hashlib.sha256(configuration.dump(config).encode()).hexdigest()[:8]
    return Path(root) / f"{name}-{utc_now:%Y%m%dT%H%M%SZ}-{digest}"


class RunRecord:
    """The record of one run, written by rank 0.

    directory    created; the first step removes an older record.json. UserError where it cannot be written
    config       nested tables, as config.to_dict gives them; config_toml is the same as text
    environment  as environment.capture gives it
    tensorboard  whether scalars, the config and the settings go to directory/tb (scalars.py)
    world_size   number of workers; throughput is summed over them
    note         called with each warning for the user
    lock         on the folder, which `close` gives back

    Call `truncate` and `restore` before the first `step` of a run that resumes; without them it begins anew.
    """

    def __init__(
        self,
        directory: Path,
        config: dict[str, Any],
        config_toml: str,
        environment: dict[str, Any],
        tensorboard: bool,
        world_size: int,
        note: Callable[[str], None],
        lock: FolderLock | None = None,
    ) -> None:
        self.directory = Path(directory)
        self._note, self._lock = note, lock
        self._known = {"config": config, "environment": environment, "world_size": world_size}
        self._world_size = world_size
        self._history: list[dict[str, Any]] = []
        self._first_step = 0
        self._last_step = 0
        self._steps: TextIO | None = None
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            for name in ("config.toml", "steps.jsonl", "record.json", "trace.json"):
                check_output(self.directory / name)
            write_atomically(self.directory / "config.toml", config_toml)
        except OSError as error:
            raise UserError(f"output.dir: {error.filename} cannot be written: {error.strerror}") from error
        self._scalars: Scalars | NoScalars = NoScalars()
        if tensorboard:
            self._scalars = Scalars(self.directory / "tb", config, config_toml, world_size)

    def already_finished(self) -> bool:
        """Whether record.json belongs to a finished run; a damaged one is set aside."""
        path = self.directory / "record.json"
        if not path.is_file():
            return False
        try:
            record = json_of(path.read_bytes())
        except ValueError:
            record = None
        if not problems(record):
            return bool(record["status"] == "finished")
        self._note(f"{path} is damaged: set aside as {set_damaged_aside(path).name}, and written anew")
        return False

    def truncate(self, step: int) -> None:
        """Keep only the earlier run's steps before `step`, the first that this run will do."""
        assert self._steps is None, "truncate() before the first step()"
        self._first_step = self._last_step = step

    def restore(self, history: list[dict[str, Any]]) -> None:
        """Begin with the epochs of the run that is resumed."""
        self._history = list(history)

    def step(
        self,
        times: StepTimes,
        *,
        epoch: int,
        loss: float,
        learning_rate: float,
        wire_bytes: int,
        extra: Mapping[str, Any],
    ) -> None:
        """Append one line to steps.jsonl, flushed at once; numbers of `extra` become scalars of their own names."""
        rate = self._world_size * times.images / times.seconds if times.seconds > 0 else None
        line = {
            **times._asdict(),
            "epoch": epoch,
            "loss": loss,
            "learning_rate": learning_rate,
            "images_per_second": rate,
            "wire_bytes": wire_bytes,
        }
        assert not line.keys() & extra.keys(), f"extra repeats {line.keys() & extra.keys()}"
        if self._lock is not None:
            self._lock.check()
        with self._keeping("steps.jsonl"):
            if self._steps is None:
                # Only now, so that a mistake found before the first step costs an earlier run in this folder nothing.
                remove(self.directory / "record.json")
                self._steps = open_steps(self.directory / "steps.jsonl", self._first_step, self._note)
            self._steps.write(_strict_json({**line, **extra}) + "\n")
            self._steps.flush()
        self._last_step = times.step
        scalars = {"train/loss": loss, "train/images_per_second": rate, "train/lr": learning_rate}
        scalars |= {"wire/bytes": wire_bytes}
        scalars |= {f"phases/{name}": seconds for name, seconds in times.phases.items()} | dict(extra)
        with self._keeping("tb"):
            self._scalars.add(scalars, times.step, self._first_step)

    def scalars(self, scalars: Mapping[str, Any], step: int | None = None) -> None:
        """Write further numbers for TensorBoard alone, at `step` or at the last one."""
        if scalars:
            with self._keeping("tb"):
                self._scalars.add(scalars, self._last_step if step is None else step, self._first_step)

    def epoch(self, entry: dict[str, Any]) -> None:
        """Append {epoch, seconds, loss, top1, ...} to the history; its scalars stand at the last step."""
        self._history.append(dict(entry))
        names = {key: f"{'test' if key in TESTED else 'epoch'}/{key}" for key in entry if key != "epoch"}
        with self._keeping("tb"):
            self._scalars.add({name: entry[key] for key, name in names.items()}, self._last_step, self._first_step)

    def finish(self, status: str, **fields: Any) -> dict[str, Any]:
        """Write record.json, close the files and return the record.

        status is finished, diverged or interrupted. `fields` are the rest of schema 1 (see schema.py); unknown fields
        are kept unchanged.
        """
        assert status in STATUSES, status
        record = {"schema": SCHEMA, "status": status, **self._known, "history": self._history, **fields}
        record = _finite(record)
        if named := edition.kept(record):
            record["edition"] = named
        with self._keeping("record.json"):
            write_atomically(self.directory / "record.json", json.dumps(record, indent=2, allow_nan=False) + "\n")
        self.close()
        # After writing: a mistake in the bookkeeping must not cost a finished run its result.
        assert not problems(record), problems(record)
        return record

    def close(self) -> None:
        """Close steps.jsonl and TensorBoard's file, and free the folder; may be called again."""
        try:
            with self._keeping("tb"):
                if self._steps is not None:
                    self._steps.close()
                self._scalars.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    @contextmanager
    def _keeping(self, name: str) -> Iterator[None]:
        """Around writing a file of the folder: what cannot be written raises Unwritable, and is given up for good."""
        try:
            with keeping(self.directory / name):
                yield
        except Unwritable:
            # Closing would flush what is still buffered, and fail as the writing did.
            steps, scalars = self._steps, self._scalars
            self._steps, self._scalars = None, NoScalars()
            with suppress(OSError):
                scalars.close()
            with suppress(OSError):
                if steps is not None:
                    steps.close()
            raise


class NullRecord:
    """Takes what RunRecord takes and writes nothing: for every rank but 0."""

    def already_finished(self) -> bool:
        """Rank 0 knows."""
        return False

    def truncate(self, step: int) -> None:
        """Nothing to drop."""

    def restore(self, history: list[dict[str, Any]]) -> None:
        """Nothing to restore."""

    def step(
        self,
        times: StepTimes,
        *,
        epoch: int,
        loss: float,
        learning_rate: float,
        wire_bytes: int,
        extra: Mapping[str, Any],
    ) -> None:
        """Write nothing."""

    def scalars(self, scalars: Mapping[str, Any], step: int | None = None) -> None:
        """Write nothing."""

    def epoch(self, entry: dict[str, Any]) -> None:
        """Write nothing."""

    def finish(self, status: str, **fields: Any) -> dict[str, Any]:
        """Write nothing; an empty record."""
        return {}

    def close(self) -> None:
        """Nothing to close."""


def _strict_json(value: object) -> str:
    return json.dumps(_finite(value), allow_nan=False)


def _finite(value: Any) -> Any:
    """The same value with None in place of every number that is not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
