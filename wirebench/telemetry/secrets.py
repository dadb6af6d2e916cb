"""What a record may not hold: passwords, keys and tokens, known by the name before them or by how they look.

Every pattern takes time in proportion to the text: one that may begin anywhere in a long word, and read on to its end,
would take hours for an argument of 128 KiB.
"""

import re
import shlex

HIDDEN = "..."
_KEYS = {"ACCESS", "ACCOUNT", "API", "AUTH", "ENCRYPTION", "MASTER", "PRIVATE", "SHARED", "SIGNING", "SSH"}
"""Words that, before `key`, make it a secret; an option named only `key` may be anything."""
_WORDS = {
    "AUTH", "AUTHORIZATION", "BEARER", "COOKIE", "CRED", "CREDS", "CREDENTIAL", "CREDENTIALS", "JWT", "PIN", "SECRET",
    "SECRETS", "SIG", "SIGNATURE", "TOKEN", *(f"{each}KEY" for each in _KEYS),
}  # fmt: skip
_ENDS = ("PASS", "PASSWD", "PW", "PWD")
_NO_PASSWORD = {"BYPASS", "COMPASS"}
_WITHIN = ("CREDENTIAL", "PASSCODE", "PASSPHRASE", "PASSWD", "PASSWORD", "SECRET")
_VARIABLE_WITHIN = (*_WITHIN, "KEY", "TOKEN")
"""Parts of the names of environment variables, in capitals, whose values are secrets."""
_PORT = r"\d{1,5}(?:[/\s]|$)"
_URLS_USER = re.compile(
    # https://user:password@host, also where the password has a / or a space; host:80/a@b has none.
    rf"(?<=//)(?:[^/\s]+(?=@)|[^/\s@:[]*+:(?!{_PORT})[^@]*+(?:@[^\s@]*)*(?=@))"
)
_USER = re.compile(rf"(?<![^\s\"'=,;&?])[\w.+%-]++:(?!/|{_PORT})[^@]*+(?:@[^@]*)*(?=@)")
"""user:password@host, without a scheme."""
_WORD_WITH_USER = re.compile(r"(?<!\S)[^\s@]++@\S*+")
_LOOKS = re.compile(
    r"(?<=\bbearer )\s{0,8}\S+|(?<=\bbasic )\s{0,8}[A-Za-z0-9+/=_-]{8,}"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"  # Amazon
    # Services' own prefixes.
    r"|\b(?:gh[opsur]_|github_pat_|glpat-|hf_|xox[abeprs][.-]|sk-|[prs]k_(?:live|test)_|dop_v1_|AIza)[\w-]{16,}"
    r"|\b(?:npm_[A-Za-z0-9]{20,}|pypi-[\w-]{10,})"
    r"|(?<=\bhooks\.slack\.com/)[^\s\"']+|(?<=/api/webhooks/)[^\s\"']+"
    r"|(?<![\w-])eyJ[\w-]*+\.[\w-]+(?:\.[\w-]*)?"  # a JSON web token
    r"|-----BEGIN.*",
    re.IGNORECASE | re.DOTALL,
)
_NAME = re.compile(
    r"(?<![\w.-])(?P<name>[\w.-]++)\\*[\"']?\s{0,8}(?P<mark>[=:])\s{0,8}"  # NAME=value, "name": "value"
    r"|(?<![^\s\"'=])(?P<option>--?[A-Za-z][\w.-]*+)(?:[\"']?,\s{0,8}|[\"']?\s++)(?!--)"  # --name value
)
_QUOTED = r"\"(?:[^\"\\]++|\\.)*+\"?|'(?:[^'\\]++|\\.)*+'?"
_QUOTED_VALUE = re.compile(rf"(?=[\"'])(?:{_QUOTED}|[^\s\"',;&)\]}}]++)++", re.DOTALL)
_OPTIONS_VALUE = re.compile(rf"(?:{_QUOTED}|[^\s\"']++)++", re.DOTALL)
_NEXT = {
    mark: re.compile(rf"(?:[,;&?]\s*+|\s(?:-\S++\s)?)\\*[\"']?[\w.-]++\\*[\"']?\s{{0,8}}{mark}") for mark in ("=", ":")
}
"""Where a value without quotes ends: before the next name with the same mark. A password may have anything else."""
_CLIENT = re.compile(r"\b(?:mysql|mariadb|sshpass)")
"""Programs whose -p is a password, in the same word or in the next one."""
_GLUED = re.compile(r"(?<![^\s\"'])-p[^\s\"']+")
_USERS = ("-u", "-U", "--user", "--proxy-user")
"""Options that take USER:PASSWORD in some programs (curl), and in others a user's name."""


def is_secret(name: str) -> bool:
    """Whether a variable, option or setting of this name may hold a secret."""
    apart = re.sub("(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()  # AccountKey
    words = set(re.split(r"[^A-Z0-9]+", apart))
    within = _VARIABLE_WITHIN if name.isupper() else _WITHIN
    known = words & _WORDS or any(each in name.upper() for each in within)
    password = any(each.endswith(_ENDS) for each in words - _NO_PASSWORD)
    return bool(known or password or ("KEY" in words and words & _KEYS))


def without_secrets(text: str) -> str:
    """The text with HIDDEN in place of each secret: what looks like one, and each value whose name says that it is."""
    client = _CLIENT.search(text) is not None
    found, place = [], 0
    while name := _NAME.search(text, place):
        found.append(text[place : name.end()])
        place = name.end()
        word = name["name"] or name["option"]
        if not _is_named(word, ":", client):  # whatever its value: the end of each is not looked for
            continue
        end = _end_of_value(text, name)
        if _is_named(word, text[place:end], client):
            found.append(HIDDEN)
            place = end
    text = "".join([*found, text[place:]])
    return _LOOKS.sub(HIDDEN, _without_users(_GLUED.sub(f"-p{HIDDEN}", text) if client else text))


def _without_users(text: str) -> str:
    """The text without what stands before the @ of an address.

    Looked for up to the last @ only: then each that is begun is found, and none is read twice.
    """
    head, at, rest = text.rpartition("@")
    text = _URLS_USER.sub(HIDDEN, f"{head}{at}") + rest
    return _WORD_WITH_USER.sub(lambda word: _without_user(word[0]), text)


def _without_user(word: str) -> str:
    head, at, rest = word.rpartition("@")
    # image:tag@sha256:... has no user.
    return word if rest.startswith("sha256:") else _USER.sub(HIDDEN, f"{head}{at}") + rest


def _is_named(name: str, value: str, client: bool) -> bool:
    """Whether the value after an option, or a name, is a secret."""
    return is_secret(name) or name == "--key" or (client and name == "-p") or (name in _USERS and ":" in value)


def _end_of_value(text: str, name: re.Match[str]) -> int:
    """The place in the text where the value ends whose name was found there."""
    begin = name.end()
    if name["option"]:
        word = _OPTIONS_VALUE.match(text, begin)
        return word.end() if word else begin
    if quoted := _QUOTED_VALUE.match(text, begin):
        return quoted.end()
    following = _NEXT[name["mark"]].search(text, begin)
    return following.start() if following else len(text)


def command_without_secrets(line: str) -> str:
    """A shell command with HIDDEN in place of each secret; its words may have spaces."""
    try:
        words = shlex.split(line)
    except ValueError:
        return without_secrets(line)
    client = any(map(_CLIENT.search, words))
    found, option = [], ""
    for word in words:
        if option and not word.startswith("--") and _is_named(option, word, client):
            found.append(HIDDEN)
        elif client and word.startswith("-p") and word != "-p":
            found.append(f"-p{HIDDEN}")
        else:
            found.append(without_secrets(word))
        option = word if word.startswith("-") and "=" not in word else ""
    return line if found == words else shlex.join(found)
