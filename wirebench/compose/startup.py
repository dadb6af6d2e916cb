"""The program that trains, and its output before torch is imported, which takes seconds, on a loaded machine minutes.

A mistake on the command line or in a section of the config ends it at once. One line shows the run that starts. Only
`program` imports torch here.
"""

import argparse
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from wirebench.comm.launch import COMMANDS, VIRTUAL_WORKERS, end_process, engine_of, launched, tell_error
from wirebench.config import catalog, loader
from wirebench.config.loader import Config
from wirebench.errors import UserError
from wirebench.utils import cli, this_machine
from wirebench.utils.own import trainer
from wirebench.utils.terminal import outlive_output

ABOUT = """Train one composition of model, compressor, scheduler and collective, and record what it puts on the wire.

examples:
{alone} CONFIG [section.key=value ...]    virtual workers in this process
{horovod} {launched} CONFIG ...
{torch} {launched} CONFIG ...

{config}
"""


def program(arguments: Sequence[str], name: str = "train.py") -> NoReturn:
    """Train, and end the process as ranks do.

    name  of the program, as the user typed it
    """
    begin(arguments, name)
    from wirebench.compose.run import main  # torch, of which the lines above need nothing

    outlive_output()
    code = main(list(arguments), phase)
    over()
    end_process(code)


def begin(arguments: Sequence[str], name: str) -> None:
    """Check the command line and print what starts. Ends the process for a mistake, and for --help.

    Until `imported` is called, Ctrl-C ends the process silently: Python would print a traceback of an import.
    """
    _exchange_handlers(signal.default_int_handler, signal.SIG_DFL)
    try:
        options = parse(arguments, name)
        if options.list is None:
            say(banner(loader.load(options.config, options.overrides)))
            phase("importing torch")
    except UserError as error:
        tell_error(error, error.exit_code)
        end_process(error.exit_code, tidy=False)


def imported() -> None:
    """The imports are done: from now on Ctrl-C raises KeyboardInterrupt, and a second one ends the process at once."""
    _told.clear()
    _exchange_handlers(signal.SIG_DFL, _on_interrupt)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _on_unraisable


def interrupted() -> bool:
    """Whether Ctrl-C was heard since `imported`: a callback from C++ code may have kept the exception to itself."""
    return bool(_told)


def over() -> None:
    """All output is printed: from now on Ctrl-C ends the process silently."""
    _exchange_handlers(_on_interrupt, signal.SIG_DFL)


_told: list[int] = []


def _on_interrupt(number: int, frame: FrameType | None) -> None:
    _told.append(number)
    signal.signal(number, signal.SIG_DFL)
    raise KeyboardInterrupt


def _on_unraisable(about: Any) -> None:
    if not isinstance(about.exc_value, KeyboardInterrupt):
        sys.__unraisablehook__(about)


def _exchange_handlers(old: object, new: Callable[..., object] | signal.Handlers) -> None:
    """Set the handler of Ctrl-C to `new` if it is `old`; a background job that ignores Ctrl-C still ignores it."""
    if signal.getsignal(signal.SIGINT) is old:
        signal.signal(signal.SIGINT, new)


def banner(given: Config) -> str:
    """One line: the engine, its ranks, the composition as far as the config itself has it. UserError as engine_of."""
    launch = launched()
    engine = engine_of(given.engine.name, given.engine.workers, launch)
    ranks = launch.size if engine != "local" else given.engine.workers or VIRTUAL_WORKERS
    parts = [f"{given.name}: {engine} x {ranks}", f"{given.model.name} on {given.data.name}"]
    parts += [f"compressor {given.compressor.name}", f"scheduler {given.scheduler.name}"]
    parts += [f"collective {given.collective.name}"] if given.collective.name else []
    return ", ".join(parts + ([f"output {given.output.dir}"] if given.output.dir else []))


def phase(text: str) -> None:
    """Print what the start-up does now, and the process's age in seconds."""
    say(f"{this_machine.process_age():6.1f} s  {text}")


def say(line: str) -> None:
    """Print a line on rank 0; if the output's reader has gone, training continues without printing."""
    if launched().rank:
        return
    try:
        print(line, flush=True)
    except OSError:
        cli.drop_output()  # a pipe whose reader has gone, or a full disk


class Parser(cli.VerbParser):
    """--help for a reader who may have gone; a mistake is one line, as in a config."""

    def print_help(self, file: Any = None) -> None:
        """Print what --help says."""
        cli.show(self.format_help())


def parse(arguments: Sequence[str], name: str = "train.py") -> argparse.Namespace:
    """The command line; --help also explains every key of a config. UserError for a setting with dashes."""
    parser = Parser(
        prog=name,
        description=_about(),
        epilog=catalog.sections(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config",
        nargs="?",
        metavar="CONFIG",
        help="TOML file, or the name of one that is shipped",
    )
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="values that replace the file's")
    listed = "print what can be composed, with options and defaults; with names: all about these"
    parser.add_argument("--list", nargs="*", metavar="NAME", help=listed)
    for word in arguments:
        if re.match(r"--?\w+\.\w", word):
            bare = word.lstrip("-")
            raise UserError(f"{word}: settings are given without dashes: {bare if '=' in bare else f'{bare}=VALUE'}")
    options = parser.parse_args(arguments)
    given = options.config is not None and (not re.match(r"\w+\.\w+=", options.config) or Path(options.config).exists())
    if not given and options.list is None:
        parser.error(f"which config? For example: {trainer()} smoke")
    return options


def _about() -> str:
    launchers = {name: command.format(size=4) for name, command in COMMANDS.items()}
    config = f"CONFIG is a TOML file, or the name of one that is shipped: {loader.shipped_names()}."
    config = textwrap.fill(config, 100, break_on_hyphens=False)
    return ABOUT.format(alone=trainer(), launched=trainer(launched=True), config=config, **launchers)
