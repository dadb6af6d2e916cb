"""Command lines: a parser whose mistakes are one line, files looked at first, and one ending for every tool."""

import argparse
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from wirebench.errors import PeerLost, Stopped, UserError, line_of
from wirebench.utils import extras
from wirebench.utils.files import check_output
from wirebench.utils.names import nearest, suggest

INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
BROKEN_PIPE = 141
"""What a shell reports for a program whose reader went away (128 + SIGPIPE)."""


class VerbParser(argparse.ArgumentParser):
    """Mistakes on the command line are one line, as all others are; a word that was mistyped is guessed."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(f"{message}; see --help")

    def print_help(self, file: Any = None) -> None:
        """Print what --help says; OSError, which argparse would keep to itself, where that cannot be written."""
        print(self.format_help(), end="", file=file)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as ArgumentParser does, but report an option that does not exist before any other mistake."""
        words = list(sys.argv[1:] if args is None else args)
        if self._subparsers is None:
            self._refuse_unknown(words[: words.index("--")] if "--" in words else words)
        return super().parse_known_args(words, namespace)

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        known = [option for option in self._option_string_actions if option.startswith("--")]
        for word in words:
            option = word.partition("=")[0]
            meant = [each for each in known if each == option or (self.allow_abbrev and each.startswith(option))]
            if word.startswith("--") and " " not in option and not meant:
                raise UserError(f"{option}: no such option; {nearest(option, known)}see --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            where = f"{action.option_strings[-1]}: " if action.option_strings else ""
            raise UserError(f"{where}no {value!r}; {suggest(str(value), list(map(str, action.choices)))}")


def parser_of(verb: str, doc: str | None) -> VerbParser:
    """The parser of `wirebench VERB`; its module says what it does in one line, then gives examples."""
    summary, _, examples = str(doc).partition("\n")
    return VerbParser(
        prog=f"wirebench {verb}",
        description=summary,
        epilog="examples:" + examples if examples.strip() else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_tool(name: str, tool: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a tool and return its exit code; errors that a user can mend, and signals, print one line, no traceback.

    2 for a user's mistake or a file that cannot be read or written, 1 if another rank is lost, 128 + its number for a
    signal; 141, silently, if the reader of the output has gone (`| head`).
    """
    try:
        code = _code_of(tool, arguments)
        sys.stdout.flush()
        return code
    except (UserError, Stopped, PeerLost) as error:
        return _say(f"{name}: {error}", error.exit_code)
    except BrokenPipeError:
        drop_output()
        return BROKEN_PIPE
    except OSError as error:
        if error.filename is None:
            drop_output()
        where = "" if error.filename is None else f"{error.filename}: "
        return _say(f"{name}: {where}{error.strerror or error}", UserError.exit_code)
    except KeyboardInterrupt:
        return _say(f"{name}: stopped", INTERRUPTED)
    except ModuleNotFoundError as error:
        if (told := extras.missing(error)) is None:
            raise
        return _say(f"{name}: {told}", told.exit_code)


@contextmanager
def importing() -> Iterator[None]:
    """Around imports that take seconds: Ctrl-C ends the process silently in place of raising KeyboardInterrupt.

    Python would print a traceback of the import, and C++ code may swallow the exception. After the block Ctrl-C raises
    again.
    """
    hears = signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_DFL)
    hears = hears and threading.current_thread() is threading.main_thread()
    if hears:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        if hears:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def naming(options: Mapping[str, str]) -> Iterator[None]:
    """Around what speaks of a config's keys: a UserError of it names the options of a command line instead.

    options  by key (`data.name`), or by section where it begins the line (`data`), what is to be named
    """
    try:
        yield
    except UserError as error:
        text = str(error)
        for key, option in options.items():
            if "." not in key:
                text = f"{option}: {text.removeprefix(f'{key}: ')}" if text.startswith(f"{key}: ") else text
                continue
            # `data.name=x` reads `--data x`, and `data.length=8` reads `--data x:length=8`.
            found = rf"(?<![\w./-]){re.escape(key)}(?![\w.])"
            text = re.sub(f"{found}=", option + ("=" if option.endswith(key.partition(".")[2]) else " "), text)
            text = re.sub(found, option, text)
        if text == str(error):
            raise
        raise type(error)(text) from error


def _code_of(tool: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    try:
        return tool(arguments)
    except SystemExit as ended:  # --help: what it printed is still to be flushed
        return ended.code if isinstance(ended.code, int) else 0


def show(text: str) -> int:
    """Print `text` at once; return 0, or silently 141 if the reader has gone (`| head`).

    Raises UserError if it cannot be written, as to a full disk.
    """
    try:
        print(text, flush=True)
    except OSError as error:
        drop_output()
        if isinstance(error, BrokenPipeError):
            return BROKEN_PIPE
        raise UserError(f"standard output: {error.strerror or error}") from error
    return 0


def drop_output() -> None:
    """Let all further output go nowhere: the interpreter flushes it once more when it ends, and would complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(line: str, code: int) -> int:
    print(line_of(line), file=sys.stderr)
    return code


def check_outputs(figure: Path | None = None, reads: Iterable[Path] = (), **files: Path | None) -> None:
    """Make the folders of the requested output files, so that a bad path fails before any computation.

    figure  must end in .png
    reads   files that are read, none of which may be written
    files   the other files, by option
    Raises UserError, naming the option, for a path that cannot be written.
    """
    if figure is not None and figure.suffix != ".png":
        raise UserError(f"--figure: draws .png, not {figure.name!r}")
    extras.check(extras.FIGURES if figure is not None else ())
    for option, path in {"figure": figure, **files}.items():
        if path is None:
            continue
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            raise UserError(f"--{option}: {path}: cannot be written: {reason}") from error
        try:
            check_output(path)
        except OSError as error:
            raise UserError(f"--{option}: {path}: {error.strerror}") from error
        if path.is_file() and any(each.exists() and path.samefile(each) for each in reads):
            raise UserError(f"--{option}: {path}: is the file that is read; write to another one")
