"""What a run finds in its folder and cannot go on with is moved aside: nothing that was saved is lost."""

import shutil
from datetime import UTC, datetime
from pathlib import Path

from wirebench.errors import UserError
from wirebench.utils.files import is_stream, target_of

FILES = ("config.toml", "record.json", "steps.jsonl", "trace.json", "tb", "checkpoints")


def archive_previous_run(directory: Path) -> Path | None:
    """Move an earlier run's files into directory/earlier-TIME; returns that folder, or None where there was no run.

    Links to files and pipes stay, so that the new run writes to where they lead.
    """
    target = directory / f"earlier-{_now()}"
    try:
        left = [directory / name for name in FILES if (directory / name).exists()]
        left = [path for path in left if not is_stream(path)]
        if not left:
            return None
        target.mkdir()
        for path in left:
            shutil.move(path if path.is_dir() else target_of(path), target / path.name)
    except OSError as error:
        raise UserError(f"output.dir: {directory} cannot be written: {error.strerror}") from error
    return target


def set_damaged_aside(path: Path) -> Path:
    """Give a file that cannot be read a name of its own, NAME.damaged-TIME, which is returned. Raises OSError."""
    target = path.with_name(f"{path.name}.damaged-{_now()}")
    shutil.move(target_of(path), target)
    return target


def _now() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
