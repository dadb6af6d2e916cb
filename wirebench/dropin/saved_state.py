"""Saved states of `synchronise` and of the DDP hook are marked with their maker, so that those of another are refused.

Residuals of two compressors may have the same names and shapes, so that nothing else would tell them apart.
"""

from collections.abc import Mapping
from typing import Any

from wirebench.errors import UserError
from wirebench.gradient.conformance import name_of
from wirebench.gradient.contract import Method

_MAKER, _METHOD = "made_by", "method"


def mark(maker: str, compressor: Method) -> dict[str, str]:
    """To go into a state. maker: `sync` or `comm_hook`, as its errors name it"""
    return {_MAKER: maker, _METHOD: name_of(compressor)}


def check(state: Mapping[str, Any], maker: str, compressor: Method) -> None:
    """UserError for what is no state of this maker with this compressor."""
    where = f"{maker}.load_state_dict"
    if not isinstance(state, Mapping) or _MAKER not in state:
        raise UserError(f"{where}: needs what {maker}.state_dict() returned, not {_said(state)}")
    if state[_MAKER] != maker:
        raise UserError(f"{where}: this is a state of {state[_MAKER]}, whose gradient is cut in another way")
    if state[_METHOD] != name_of(compressor):
        raise UserError(
            f"{where}: this is a state of compressor {state[_METHOD]!r}, and here is {name_of(compressor)!r}"
        )


def _said(state: object) -> str:
    return "a mapping without its keys" if isinstance(state, Mapping) else f"a {type(state).__name__}"
