"""Commands that have commands: `wirebench VERB`, `wirebench bench TOOL`; what they list, and how one is run."""

import gc
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wirebench.comm.launch import let_rank_0_tell
from wirebench.errors import UserError
from wirebench.utils.cli import importing, run_tool
from wirebench.utils.names import suggest

Tool = Callable[[Sequence[str]], int]


class Entry(NamedTuple):
    """What a menu offers: the module whose `main` it runs, imported when it is called, and what it does in a line."""

    module: str
    about: str


@dataclass(frozen=True)
class Menu:
    """A command whose first argument selects an entry.

    command  the command line up to the entry: `wirebench bench`
    doc      its module's docstring, the beginning of --help
    word     what its entries are called: verb, tool
    after    the last text of --help
    version  the command's version; "" if it has none of its own
    """

    command: str
    doc: str
    word: str
    entries: Mapping[str, Entry]
    after: str = ""
    version: str = ""

    def run(self, arguments: Sequence[str]) -> int:
        """Run the entry that the first word names, in the one way in which tools end; returns the exit code."""
        words = list(arguments)
        if self.version and words[:1] == ["--version"]:
            return run_tool(self.command, self._tell_version, words)
        if not words or words[0] in ("-h", "--help"):
            return run_tool(self.command, self._help, words)
        return run_tool(f"{self.command} {words[0]}", self._tool(words[0]), words[1:])

    def usage(self) -> str:
        """The text that --help prints."""
        width = max(map(len, self.entries))
        lines = [self.doc.rstrip(), "", *(f"  {name:{width}}  {entry.about}" for name, entry in self.entries.items())]
        return "\n".join([*lines, "", f"{self.command} {self.word.upper()} --help explains one. {self.after}".rstrip()])

    def _tell_version(self, arguments: Sequence[str]) -> int:
        print(f"{self.command} {self.version}")
        return 0

    def _help(self, arguments: Sequence[str]) -> int:
        print(self.usage())
        return 0

    def _tool(self, name: str) -> Tool:
        def run(arguments: Sequence[str]) -> int:
            try:
                if name not in self.entries:
                    raise UserError(f"no such {self.word}; {suggest(name, list(self.entries))}")
                with importing():
                    module = importlib.import_module(self.entries[name].module)
                _collect_garbage()
                return int(module.main(arguments))
            except UserError:
                let_rank_0_tell()
                raise

        return run


def _collect_garbage() -> None:
    """Switch the garbage collector on if imports ran without it; objects made by the imports are never scanned."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
