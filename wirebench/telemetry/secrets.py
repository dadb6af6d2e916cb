"""What a record may not hold: passwords, keys and tokens, known by the name before them or by how they look."""

import re
import shlex

HIDDEN = "..."
_WORDS = {
    "AUTH", "AUTHORIZATION", "APIKEY", "BEARER", "COOKIE", "CRED", "CREDS", "CREDENTIAL", "CREDENTIALS", "PASS",
    "PASSPHRASE", "PASSWD", "PASSWORD", "PIN", "PW", "PWD", "SECRET", "SECRETS", "SIG", "SIGNATURE", "TOKEN",
}  # fmt: skip
_WITHIN = ("CREDENTIAL", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET")
_VARIABLE_WITHIN = (*_WITHIN, "KEY", "TOKEN")
"""In the names of environment variables, which are written in capitals."""
_KEYS = {"ACCESS", "API", "ENCRYPTION", "PRIVATE", "SIGNING", "SSH"}
"""With one of these a `key` is a secret: an option of that name alone may be anything."""
_LOOKS = re.compile(
    r"(?<=://)[^/\s]+(?=@)"  # https://user:password@host
    r"|(?<=\bbearer )\s*\S+|(?<=\bbasic )\s*[A-Za-z0-9+/=_-]{8,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    r"|\b(?:gh[opsur]_|github_pat_|glpat-|hf_|xox[abprs]-|sk-|AIza)[\w-]{16,}"  # services' own prefixes
    r"|\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"  # a JSON web token
    r"|-----BEGIN.*",
    re.IGNORECASE | re.DOTALL,
)
_PAIR = re.compile(r"([\w.-]+)=(.*?)(?=[,;&?][\w.-]+=|\s+(?:-\S+\s+)?[\w.-]+=|$)", re.DOTALL)


def is_secret(name: str) -> bool:
    """Whether a variable, option or setting of this name may hold a secret."""
    words = set(re.split(r"[^A-Z0-9]+", name.upper()))
    within = _VARIABLE_WITHIN if name.isupper() else _WITHIN
    known = words & _WORDS or any(each in name.upper() for each in within)
    return bool(known or ("KEY" in words and words & _KEYS))


def without_secrets(text: str) -> str:
    """The text with HIDDEN in place of each secret: what looks like one, and the value of each NAME=VALUE named so."""
    text = _PAIR.sub(lambda pair: f"{pair[1]}={HIDDEN}" if is_secret(pair[1]) else pair[0], text)
    return _LOOKS.sub(HIDDEN, text)


def command_without_secrets(line: str) -> str:
    """A shell command likewise; also the word after an option such as --password."""
    try:
        words = shlex.split(line)
    except ValueError:
        return without_secrets(line)
    found, hides = [], False
    for word in words:
        found.append(HIDDEN if hides and not word.startswith("--") else without_secrets(word))
        hides = word.startswith("-") and "=" not in word and (is_secret(word) or word == "--key")
    return line if found == words else shlex.join(found)
