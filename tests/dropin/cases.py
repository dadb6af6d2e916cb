"""Scripts that run on every rank of a job: each function of theirs that takes and returns nothing is a case.

A case holds on all ranks, or its error ends the job.
"""

import sys
from collections.abc import Callable
from inspect import isfunction, signature
from types import ModuleType

from wirebench.comm.launch import end_process
from wirebench.errors import UserError


def cases_of(script: ModuleType) -> list[Callable[[], None]]:
    """The cases in their order."""
    own = [each for each in vars(script).values() if isfunction(each) and each.__module__ == script.__name__]
    return [each for each in own if not signature(each).parameters and signature(each).return_annotation is None]


def run(rank: int) -> None:
    """Run each case of the script that was started; rank 0 prints its name when it is over."""
    for case in cases_of(sys.modules["__main__"]):
        case()
        if rank == 0:
            print(case.__name__, flush=True)
    end_process(0)


def says(words: str, act: Callable[[], object]) -> None:
    """The call is refused in one line that has these words."""
    try:
        act()
    except UserError as error:
        assert words in str(error), error
        assert "\n" not in str(error)
    else:
        raise AssertionError(f"nothing said {words!r}")
