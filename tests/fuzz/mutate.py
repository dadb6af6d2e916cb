"""Damage that files and settings meet: a value of another kind, a missing key, bytes that are others or gone."""

import copy
import json
import random
from typing import Any

NUMBERS: tuple[Any, ...] = (
    0, -1, 1, 2, 3, 7, 1.5, -0.0, 1e-300, 1e308, float("nan"), float("inf"), -float("inf"), 2**31, 2**40, -(2**63),
    10**30,
)  # fmt: skip
TEXTS: tuple[Any, ...] = (
    "", " ", "a", "no such thing", "../x", "/", "nan", "1", "[", "\u00fcmlaut \u2603", "x" * 5000, "a\nb", "\x7f",
    "wirebench.compressors.topk", "wirebench.models.toy", "os.system", "1gbit", "2+3",
)  # fmt: skip
OTHERS: tuple[Any, ...] = (True, False, None, [], {}, [1, "a"], {"a": 1}, [[]], [None])


def value(chance: random.Random, toml: bool = False) -> Any:
    """Something that may stand in a file; what TOML cannot hold is left out where it is to be TOML."""
    kind = chance.choice((NUMBERS, NUMBERS, TEXTS, OTHERS))
    drawn = copy.deepcopy(chance.choice(kind))
    if toml and (drawn is None or drawn == [None] or (isinstance(drawn, int) and not -(2**63) <= drawn < 2**63)):
        return "null"
    return drawn


def table(content: Any, chance: random.Random, toml: bool = False) -> Any:
    """The same tables and lists with one to three changes somewhere in them."""
    changed = copy.deepcopy(content)
    for _ in range(chance.randint(1, 3)):
        holder = chance.choice(_holders(changed))
        if not holder:
            continue
        key = chance.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        match chance.randrange(5):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[str(key) + chance.choice(("x", " ", ".", ""))] = value(chance, toml)
            case 1:
                holder.insert(key, value(chance, toml))
            case _:
                holder[key] = value(chance, toml)
    return changed


def _holders(content: Any) -> list[Any]:
    inside = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    below = [holder for each in inside for holder in _holders(each)]
    return [content, *below] if isinstance(content, dict | list) else below


def raw(content: bytes, chance: random.Random) -> bytes:
    """The same bytes with some flipped, cut out, doubled or put in; or cut off; or nested a hundred thousand deep."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        length = chance.choice((1, 1, 2, 8, 300))
        match chance.randrange(6):
            case 0:
                del changed[place:]
            case 1:
                del changed[place : place + length]
            case 2:
                changed[place:place] = changed[place : place + length]
            case 3:
                changed[place:place] = chance.choice(
                    (b"[" * 100_000, b"\x00", b"\xff\xfe", b'"', b"\n", b"{", b"9" * 400)
                )
            case _:
                for at in range(place, min(place + length, len(changed))):
                    changed[at] ^= 1 << chance.randrange(8)
    return bytes(changed)


def as_json(content: Any, chance: random.Random) -> bytes:
    """A JSON text that is damaged in what it says, or in its bytes."""
    if chance.random() < 0.6:
        return json.dumps(table(content, chance)).encode()
    return raw(json.dumps(content).encode(), chance)
