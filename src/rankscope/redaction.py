"""Secrets in command lines and other recorded text are replaced by REDACTED, wherever rankscope keeps or prints them.

What counts as a secret (docs/capture.md lists it for users):

- the value of an option, variable or setting whose name says so: --api-key X, --token=X, WANDB_API_KEY=X,
  model.password=X, ?token=X in a URL. `SECRET_NAMES` and `SECRET_KEYS` are the names, `NOT_SECRET` the exceptions
  (--pad-token, --max-tokens).
- the password in a URL: https://user:PASSWORD@host, or a long user name without one (https://TOKEN@host).
- text of a known form, wherever it is: `KNOWN_FORMS` (hf_…, sk-…, ghp_…, AKIA…, JSON web tokens, Bearer …).

A value that is too much is a smaller fault than a secret that stays. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

REDACTED = "REDACTED"

# The last part of a name: wandb-token, db_password, trainer.auth.secret.
SECRET_NAMES = frozenset(
    {
        "apikey",
        "apitoken",
        "accesskey",
        "accesstoken",
        "authtoken",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "dsn",
        "passphrase",
        "passwd",
        "password",
        "pat",
        "pwd",
        "secret",
        "secretkey",
        "secrets",
        "sig",
        "signature",
        "token",
    }
)
# The part before a last part "key" or "auth" that makes it secret: api-key, AWS_SECRET_ACCESS_KEY.
SECRET_KEYS = frozenset(
    {
        "access",
        "account",
        "admin",
        "anthropic",
        "api",
        "auth",
        "aws",
        "azure",
        "client",
        "comet",
        "encryption",
        "hf",
        "license",
        "master",
        "neptune",
        "ngc",
        "openai",
        "private",
        "secret",
        "service",
        "shared",
        "signing",
        "ssh",
        "storage",
        "subscription",
        "wandb",
    }
)
# The part before a last part "token" that makes it a piece of text of a language model.
NOT_SECRET = frozenset(
    {
        "begin",
        "bos",
        "cls",
        "end",
        "eos",
        "fim",
        "image",
        "mask",
        "next",
        "no",
        "pad",
        "per",
        "sep",
        "special",
        "start",
        "stop",
        "unk",
        "use",
    }
)

KNOWN_FORMS = re.compile(
    "|".join(
        (
            r"\bhf_[A-Za-z0-9]{16,}",  # Hugging Face
            r"\bsk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic
            r"\bgh[opsur]_[A-Za-z0-9]{16,}",  # GitHub
            r"\bgithub_pat_\w{16,}",
            r"\bglpat-[\w-]{16,}",  # GitLab
            r"\bxox[abeoprs]-[\w-]{10,}",  # Slack
            r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
            r"\bAIza[\w-]{30,}",  # Google
            r"\bnvapi-[\w-]{16,}",  # NVIDIA
            r"\bgsk_[A-Za-z0-9]{16,}",
            r"\bpypi-[\w-]{30,}",
            r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # JSON web token
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
        )
    )
)
_BEARER = re.compile(r"\b(Bearer|Basic)(\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_URL_USER = re.compile(r"(\b[A-Za-z][A-Za-z0-9+.-]*://)([^\s/?#@:]*)(:[^\s/?#@]*)?@")
# From this length on, a user name in a URL is taken for a token.
_LONGEST_USER = 16
# NAME=value, with an end that fits lists (a=1,b=2), query strings and shell text.
_SETTING = re.compile(r"""(?P<name>[A-Za-z_][\w.-]*)=(?P<value>"[^"]*"|'[^']*'|[^\s,;&|"')]*)""")
_OPTION = re.compile(
    r"""(?<!\S)(?P<option>--?[A-Za-z][\w.-]*)(?P<space>\s+)(?P<value>"[^"]*"|'[^']*'|[^\s"'-]\S*)"""
)
_WORDS_OF_A_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line for a record: each word with its secrets replaced, and the words that follow a secret option."""
    kept: list[str] = []
    value_follows = False
    for word in words:
        if value_follows and not word.startswith("-"):
            kept.append(REDACTED)
        else:
            kept.append(redacted(word))
        value_follows = word.startswith("-") and "=" not in word and is_secret_name(word)
    return kept


def redacted(text: str) -> str:
    """Any text for a record, such as a shell command or an error message."""
    text = KNOWN_FORMS.sub(REDACTED, text)
    text = _BEARER.sub(rf"\1\2{REDACTED}", text)
    text = _URL_USER.sub(_without_password, text)
    text = _SETTING.sub(_without_value, text)
    return _OPTION.sub(_without_value, text)


def holds_secret(words: Sequence[str]) -> bool:
    return redacted_command(words) != list(words)


def is_secret_name(name: str) -> bool:
    """Whether an option, variable or setting of this name holds a secret."""
    parts = [part.lower() for part in _WORDS_OF_A_NAME.findall(name)]
    if not parts:
        return False
    last, before = parts[-1], parts[-2] if len(parts) > 1 else ""
    if last == "token":
        return before not in NOT_SECRET
    return last in SECRET_NAMES or (last in ("key", "auth") and before in SECRET_KEYS)


def _without_value(match: re.Match[str]) -> str:
    named = match.groupdict()
    name, value = named.get("name") or named["option"], named["value"]
    begin = match[0][: match.start("value") - match.start()]
    if not value or not is_secret_name(name):
        return begin + _SETTING.sub(_without_value, value)  # --env=TOKEN=X
    quote = value[0] if value[0] in "\"'" else ""
    return f"{begin}{quote}{REDACTED}{quote}"


def _without_password(match: re.Match[str]) -> str:
    scheme, user, password = match.groups()
    if password:
        return f"{scheme}{user}:{REDACTED}@"
    return f"{scheme}{user if len(user) < _LONGEST_USER else REDACTED}@"
