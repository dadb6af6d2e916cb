"""All studies' runs, one study after the other: the runs of the committed reports, or a short version of them."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from papers.runner import Launch, Part, in_words
from papers.study import Study, available
from wirebench.errors import UserError

INPUTS = {"data": "the folder of CIFAR-10", "images": "an image folder with train and val"}
"""What stands for {data} and {images} in a study's series."""


def run_all(quick: bool, inputs: Mapping[str, Path | None], launch: Launch, names: Sequence[str] = ()) -> list[str]:
    """Make the runs of these studies, else of all, that are not there; labels of failed ones after their study's name.

    inputs  folders by the names of INPUTS; runs that need one that is None are left out, and told. UserError for one
            that is none: its runs may be hours away
    """
    for key, folder in inputs.items():
        if folder is not None and not folder.is_dir():
            raise UserError(f"--{key}: {folder}: is no folder; expected {INPUTS[key]}")
    failed: list[str] = []
    names = names or available()
    parts = {name: list(_given(name, _parts(name, quick), inputs)) for name in names}
    left = sum(part.minutes for those in parts.values() for part in those)
    for number, name in enumerate(names, 1):
        for part in parts[name]:
            about = f"about {in_words(left)} left in all on two cores"
            print(f"study {number} of {len(names)}: {name}, {about}", file=sys.stderr)
            try:
                failed += [f"{name}: {label}" for label in Study(name).runs.run(options_of(name, part.words), launch)]
            except UserError as error:
                # Runs of other settings lie there, or a config is wrong: the other studies can be made all the same.
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
            left -= part.minutes
    return failed


def _parts(name: str, quick: bool) -> Sequence[Part]:
    """The study's series; UserError for a study of the user's own that has none."""
    runs = Study(name).runs
    if not hasattr(runs, "series"):
        raise UserError(f"{name}: its run.py has no series(quick); `wirebench study {name} run` makes its runs")
    return runs.series(quick)


def _given(name: str, parts: Iterable[Part], inputs: Mapping[str, Path | None]) -> Iterator[Part]:
    """The parts whose inputs are there, with these in place of their names; missing ones are named on stderr."""
    for part in parts:
        missing = [key for key in INPUTS if f"{{{key}}}" in part.words and inputs.get(key) is None]
        if missing:
            print(f"{name}: left out: needs --{missing[0]} FOLDER, {INPUTS[missing[0]]}", file=sys.stderr)
        else:
            words = [str(inputs[word.strip("{}")]) if word.strip("{}") in INPUTS else word for word in part.words]
            yield part._replace(words=words)


def options_of(name: str, words: list[str]) -> argparse.Namespace:
    """What `wirebench study NAME run` reads from these words."""
    parser = argparse.ArgumentParser(prog=f"wirebench study {name} run")
    Study(name).runs.flags(parser)
    parser.add_argument("--again", action="store_true")
    return parser.parse_args(words)
