"""Command lines: a parser whose mistakes are one line, files looked at first, and one ending for every tool."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from wirebench.errors import Stopped, UserError

INTERRUPTED = 130
"""What a shell reports for a program that Ctrl-C ended."""
BROKEN_PIPE = 141
"""What a shell reports for a program whose reader went away (128 + SIGPIPE)."""


class Parser(argparse.ArgumentParser):
    """Mistakes on the command line are one line, as all others are."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(f"{message}; see --help")


def parser_of(verb: str, doc: str | None) -> Parser:
    """The parser of `wirebench VERB`; its module says what it does in one line, then gives examples."""
    summary, _, examples = str(doc).partition("\n")
    return Parser(
        prog=f"wirebench {verb}",
        description=summary,
        epilog="examples:" + examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run_tool(name: str, tool: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Run a tool and return its exit code; what a user can mend or wanted is one line on standard error, no traceback.

    2 for a user's mistake or a file that cannot be read or written, 128 + its number for a signal, 141 without a word
    where whoever read the output has gone (`| head`).
    """
    try:
        code = tool(arguments)
        sys.stdout.flush()
        return code
    except (UserError, Stopped) as error:
        return _say(f"{name}: {error}", error.exit_code)
    except BrokenPipeError:
        # The interpreter flushes standard output once more when it ends, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _say(f"{name}: {where}{error.strerror or error}", UserError.exit_code)
    except KeyboardInterrupt:
        return _say(f"{name}: stopped", INTERRUPTED)


def _say(line: str, code: int) -> int:
    print(line, file=sys.stderr)
    return code


def check_outputs(figure: Path | None = None, **files: Path | None) -> None:
    """Make the folders of the requested output files, before anything is computed in vain.

    figure  must end in .png
    files   the other files, by option
    Raises UserError, naming the option, for a path that cannot be written.
    """
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
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            reason = "is a folder" if path.is_dir() else "its folder cannot be written to"
            raise UserError(f"--{option}: {path}: {reason}")
