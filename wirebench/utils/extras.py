"""What an installation may lack: packages of an extra, and the line that says how to get them."""

import importlib
import importlib.util
import types
from collections.abc import Iterable
from typing import Any

from wirebench.errors import UserError

EXTRAS = {
    "altair": "figures", "vl_convert": "figures",
    "torchvision": "train", "tensorboard": "train", "sklearn": "train", "PIL": "train",
    "mkdocs": "site", "material": "site",
}  # fmt: skip
"""The extra of pyproject.toml that installs a module, by the module's name."""
FIGURES = tuple(name for name, extra in EXTRAS.items() if extra == "figures")


def missing(error: BaseException) -> UserError | None:
    """The line for an import that failed since an extra is not installed; None for any other error."""
    name = str(error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in EXTRAS or _is_there(name):
        return None
    more = "; or set output.tensorboard=false" * (name == "tensorboard")
    return UserError(f"{name} is not installed: pip install 'wirebench[{EXTRAS[name]}]'{more}")


def check(names: Iterable[str]) -> None:
    """Raise UserError for the first of these packages that is not installed, before anything is computed."""
    for name in names:
        if not _is_there(name) and (told := missing(ModuleNotFoundError(name=name))):
            raise told


class Late(types.ModuleType):
    """A module that is imported when something of it is first asked for; UserError where an extra lacks."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module(self.__name__)
        except ModuleNotFoundError as error:
            raise missing(error) or error from error
        return getattr(module, name)


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ModuleNotFoundError, ValueError):
        return False
