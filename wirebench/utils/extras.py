"""What an installation may lack: packages of an extra, and the line that says how to get them."""

import importlib
import types
from typing import Any

from wirebench.errors import UserError

EXTRAS = {
    "altair": "figures", "vl_convert": "figures",
    "torchvision": "train", "tensorboard": "train", "sklearn": "train", "PIL": "train",
    "horovod": "horovod",
}  # fmt: skip
"""The extra of pyproject.toml that installs a module, by the module's name."""


def missing(error: BaseException) -> UserError | None:
    """The line for an import that failed since an extra is not installed; None for any other error."""
    name = str(error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if name not in EXTRAS:
        return None
    return UserError(f"{name} is not installed: pip install 'wirebench[{EXTRAS[name]}]'")


class Late(types.ModuleType):
    """A module that is imported when something of it is first asked for; UserError where an extra lacks."""

    def __getattr__(self, name: str) -> Any:
        try:
            module = importlib.import_module(self.__name__)
        except ModuleNotFoundError as error:
            raise missing(error) or error from error
        return getattr(module, name)
