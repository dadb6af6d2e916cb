"""Names that were mistyped: the one that was probably meant, and those that there are."""

from collections.abc import Sequence
from difflib import get_close_matches


def nearest(word: str, known: Sequence[str]) -> str:
    """The known word that was probably meant, as a question; '' where none is near. Case does not count.

    An abbreviation means the only word that begins with it.
    """
    lower = {each.lower(): each for each in known}
    longer = [each for each in lower if word and each.startswith(word.lower())]
    near = longer if len(longer) == 1 else get_close_matches(word.lower(), list(lower), 1)
    return f"did you mean {lower[near[0]]!r}? " if near else ""


def suggest(word: str, known: Sequence[str]) -> str:
    """The end of an error line: the nearest known word, if any, and all of them."""
    return f"{nearest(word, known)}there is: {', '.join(sorted(known)) or 'none'}"
