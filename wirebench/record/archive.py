"""A run that begins anew in a folder that holds an earlier one moves that aside: nothing that was saved is lost."""

from datetime import UTC, datetime
from pathlib import Path

from wirebench.errors import UserError

FILES = ("config.toml", "record.json", "steps.jsonl", "trace.json", "tb", "checkpoints")


def archive_previous_run(directory: Path) -> Path | None:
    """Move an earlier run's files into directory/earlier-TIME; returns that folder, or None where there was no run."""
    target = directory / f"earlier-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}"
    try:
        found = [directory / name for name in FILES if (directory / name).exists()]
        if not found:
            return None
        target.mkdir()
        for path in found:
            path.rename(target / path.name)
    except OSError as error:
        raise UserError(f"output.dir: {directory} cannot be written: {error.strerror}") from error
    return target
