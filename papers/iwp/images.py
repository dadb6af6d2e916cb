"""A small folder of images: links to a few of each class, so that an epoch has few steps.

Layer-wise thresholds adapt from the second epoch on, and the whole of ImageNet would take hours to get there.
"""

import itertools
import shutil
from pathlib import Path

from wirebench.errors import UserError

PARTS = ("train", "val")


def check(folder: Path) -> None:
    """UserError for a folder that is not one of images in classes."""
    for part in PARTS:
        if not any(path.is_dir() for path in _entries(folder / part)):
            raise UserError(
                f"--images: {folder / part}: has no folder of a class; FOLDER has train/CLASS and val/CLASS"
            )


def link(source: Path, target: Path, images: int) -> None:
    """Make `target` anew with links to about `images` training images, equally many of each class, and two to test."""
    check(source)
    shutil.rmtree(target, ignore_errors=True)
    classes = [path for path in _entries(source / "train") if path.is_dir()]
    counts = {"train": -(-images // len(classes)), "val": 2}
    for part, each in itertools.product(PARTS, classes):
        made = target / part / each.name
        made.mkdir(parents=True)
        found = (path for path in _entries(source / part / each.name) if path.is_file())
        for path in itertools.islice(found, counts[part]):
            (made / path.name).symlink_to(path.resolve())


def _entries(folder: Path) -> list[Path]:
    """By name, so that every machine links the same images."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise UserError(f"--images: {folder}: cannot be read: {error.strerror}") from error
