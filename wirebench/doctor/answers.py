"""What an agent may answer. What runs on another host may be of another version, so each field is checked."""

from collections.abc import Callable, Mapping
from typing import Any

MOST = 1e12
"""More than any number here: seconds since 1970, gigabytes, bytes per second."""
LONGEST = 300
"""Letters of a text that is shown in a line."""

Check = Callable[[Any], bool]
Facts = Mapping[str, Any]
"""What a host knows of itself, by name."""


def printable(text: str) -> str:
    """The text with spaces for characters that may not be shown in a terminal."""
    return "".join(each if each.isprintable() else " " for each in text)


def _text(value: Any) -> bool:
    """It is shown in a terminal, so nothing in it may move the cursor."""
    return isinstance(value, str) and value.isprintable() and len(value) <= LONGEST


def _text_or_none(value: Any) -> bool:
    return value is None or _text(value)


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_text, value))


def _number(value: Any) -> bool:
    """Neither NaN, which no comparison finds too large or too small, nor a whole number that is no float."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST


def _number_or_none(value: Any) -> bool:
    return value is None or _number(value)


def _yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def _mapping(**checks: Check) -> Check:
    """Of a mapping that has these keys, and may have others."""
    return lambda value: isinstance(value, dict) and all(check(value.get(key)) for key, check in checks.items())


def _by_name(check: Check) -> Check:
    return lambda value: isinstance(value, dict) and all(map(_text, value)) and all(map(check, value.values()))


def _list(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _positive(value: Any) -> bool:
    """Rates are divided by it."""
    return _number(value) and value > 0


def _sizes(value: Any) -> bool:
    """Pairs of bytes and seconds."""
    pair = _list(_positive)
    return isinstance(value, list) and all(pair(each) and len(each) == 2 for each in value)


def _port(value: Any) -> bool:
    return isinstance(value, int) and 1 <= value <= 65535 and not isinstance(value, bool)


_SHOWN = (
    "commit", "wirebench", "python", "torch", "torchvision", "horovod", "horovod_build", "cuda", "nccl", "driver",
    "config", "address",
)  # fmt: skip
FACTS: Mapping[str, Check] = {
    **dict.fromkeys(_SHOWN, _text_or_none),
    "dirty": _yes_or_no,
    "gpus": _texts,
    "cores": _positive,
    "free_gb": _number,
    "shared_memory_gb": _number_or_none,
    "boot": _text,
    "links": _by_name(_mapping(addresses=_texts, running=_yes_or_no, mtu=_number, mbit=_number, duplex=_text)),
    "name_addresses": _texts,
    "variables": _by_name(_text),
    "fabric": _list(_mapping(device=_text, port=_number, gbit=_number, state=_text, layer=_text)),
    "tcp": _by_name(_text),
}
"""The facts that are compared or shown."""
_TIMED: Mapping[str, Mapping[str, Check]] = {
    "measure": {
        "round_trip": _number, "bytes_per_second": _number, "by_size": _sizes, "segment": _number, "source": _text,
        "waited": _number,
    },
    "sum": {
        **dict.fromkeys(("start_up", "bytes_per_second", "seconds"), _positive),
        **dict.fromkeys(("add", "busy"), _number),
    },
}  # fmt: skip
_SINGLE: Mapping[str, Check] = {"clock": _number, "resolve": _text, "listen": _port, "free_port": _port}


def odd(what: str, answer: Any) -> str | None:
    """What no agent of this version says in answer to the question `what`; None where nothing is odd.

    Facts may be missing (compare tells which): another version's are compared as far as they go.
    """
    if what in _SINGLE:
        return None if _SINGLE[what](answer) else what
    if not isinstance(answer, dict):
        return what
    checks = FACTS if what == "facts" else _TIMED[what]
    needed = set(answer) if what == "facts" else set(checks)
    wrong = (name for name, check in checks.items() if name in needed and not check(answer.get(name)))
    return next((f"{what}: {name}" for name in wrong), None)
