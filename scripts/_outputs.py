"""Files that a script will write: looked at before it computes, so that nothing is computed in vain."""

import os
from pathlib import Path

from wirebench.errors import UserError
from wirebench.files import is_stream, target_of


def check_outputs(figure: Path | None = None, **files: Path | None) -> None:
    """Make the folders of the files that were asked for; UserError, by option, for one that cannot be written."""
    if figure is not None and figure.suffix != ".png":
        raise UserError(f"--figure: draws .png, not {figure.name!r}")
    for option, path in {"figure": figure, **files}.items():
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise UserError(f"--{option}: {path}: cannot be written: {reason}") from error
        place = path if is_stream(path) else target_of(path).parent
        if path.is_dir() or not os.access(place, os.W_OK):
            reason = "is a folder" if path.is_dir() else "its folder cannot be written to"
            raise UserError(f"--{option}: {path}: {reason}")
