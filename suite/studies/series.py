"""All studies' runs, one study after the other: those of the committed reports, or a short version of them."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from suite.studies.runner import Launch
from suite.studies.study import Study, available
from wirebench.errors import UserError

INPUTS = {"data": "the folder of CIFAR-10", "images": "an image folder with train and val"}
"""What stands for {data} and {images} in a study's series."""


def run_all(quick: bool, inputs: Mapping[str, Path | None], launch: Launch) -> list[str]:
    """Make all runs that are not there yet; the labels of those that failed, each after its study's name.

    inputs  folders by the names of INPUTS; runs that need one that is None are left out, and told
    """
    failed = []
    names = available()
    for number, name in enumerate(names, 1):
        print(f"study {number} of {len(names)}: {name}", file=sys.stderr, flush=True)
        for line in Study(name).runs.series(quick):
            missing = [key for key in INPUTS if f"{{{key}}}" in line and inputs.get(key) is None]
            if missing:
                print(f"{name}: left out: needs --{missing[0]} FOLDER, {INPUTS[missing[0]]}", file=sys.stderr)
                continue
            words = [str(inputs[word.strip("{}")]) if word.strip("{}") in INPUTS else word for word in line]
            try:
                failed += [f"{name}: {label}" for label in Study(name).runs.run(options_of(name, words), launch)]
            except UserError as error:
                # Runs of other settings lie there, or a config is wrong: the other studies can be made all the same.
                print(f"{name}: {error}", file=sys.stderr)
                failed.append(name)
    return failed


def options_of(name: str, words: list[str]) -> argparse.Namespace:
    """What `wirebench study NAME run` reads from these words."""
    parser = argparse.ArgumentParser(prog=f"wirebench study {name} run")
    Study(name).runs.flags(parser)
    parser.add_argument("--again", action="store_true")
    return parser.parse_args(words)
