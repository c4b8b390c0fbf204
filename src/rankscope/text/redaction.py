"""Secrets in command lines and other recorded text are replaced by REDACTED, wherever rankscope keeps or prints them.

What counts as a secret (docs/capture.md lists it for users):

- the value of an option, variable, setting, header or JSON or YAML key whose name says so: --api-key X, --token=X,
  WANDB_API_KEY=X, model.password=X, ?token=X in a URL, X-Api-Key: X, {"api_key": "X"}. `SECRET_NAMES` and `SECRET_KEYS`
  are the names, `NOT_SECRET` and `NOT_SECRET_VALUES` the exceptions (--pad-token, --max-tokens 4096).
- the password in a URL (https://user:PASSWORD@host), a long user name without one (https://TOKEN@host), and the path of
  a webhook.
- -p X, unless X is a number, ports or a path, and X of -u A:X, unless both are numbers; not behind a program whose -p
  and -u are something else (srun, ssh, docker …).
- text of a known form, wherever it is: `KNOWN_FORMS` (hf_…, sk-…, ghp_…, AKIA…, JSON web tokens, Bearer …).

A value that is too much is a smaller fault than a secret that stays. Every pattern reads a text once, whatever it is:
names begin where no name is (a lookbehind), and nothing is searched again from its middle. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

REDACTED = "REDACTED"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The last part of a name: wandb-token, db_password, trainer.auth.secret. Plurals count, and names that end in one of
# the longer words: PGPASSWORD.
SECRET_NAMES = _words(
    """
    accesskey apikey auth authorization bearer cookie cred credential credentials dbpass dsn jwt pass passcode
    passphrase passwd password pat psk pswd pw pwd secret secretkey sessionid sig signature sshpass token userpass
    userpwd webhook
    """
)
_SECRET_ENDS = ("password", "passwd", "passphrase", "secret", "token")
# The part before a last part "key" that makes it secret: api-key, AWS_SECRET_ACCESS_KEY, masterkey.
SECRET_KEYS = _words(
    """
    access account admin anthropic api app auth aws azure client comet deploy encryption hf license master neptune
    ngc openai private registry secret service shared signing ssh storage subscription wandb webhook
    """
)
# The part before a last part "token" that makes it a piece of text of a language model, or a number of them.
NOT_SECRET = _words(
    """
    audio begin blank bos class cls end eos extra fim first image last mask max min new next no num pad per
    placeholder sep separator sos special start stop think total unk use video vision
    """
)
# Values that make a name's last part something else.
_COUNT = r"[\d.,_]+(?:[eE][+-]?\d+)?[kKmMbBgGtT]?"
NOT_SECRET_VALUES = {
    "": re.compile(r"(?i:true|false|none|null|yes|no|\{\}|\[\])"),
    "auth": re.compile(r"(?i:basic|digest|bearer|kerberos|munge)"),
    "pass": re.compile(r"\d{1,3}"),
    "pwd": re.compile(r"\.{0,2}/.*|~.*", re.DOTALL),
    "token": re.compile(r"<.*>|\[[A-Z]+\]", re.DOTALL),
    "tokens": re.compile(rf"{_COUNT}|<.*>|\[.*\]", re.DOTALL),
}

# What keys and tokens begin with, by who gives them out. From the rules of gitleaks (config/gitleaks.toml, July 2026),
# GitHub's list of secret scanning patterns, and the documentation of Cloudflare, Figma, Tailscale and W&B.
_PREFIXES = """
Alibaba LTAI  Artifactory AKCp  Atlassian ATATT3 ATCTT3 ATBB  AWS ABSK  Cloudflare cfk_ cfut_ cfat_  DigitalOcean
dop_v1_ doo_v1_ dor_v1_  Docker dckr_pat_  Doppler dp.pt.  EasyPost EZAK EZTK  Figma figd_ figu_  GitHub gho_ ghp_ ghr_
ghs_ ghu_ github_pat_  GitLab glagent- glcbt- gldt- glffct- glft- glimt- gloas- glpat- glptt- glrt- glsoat-  Google
GOCSPX- ya29.  Grafana glc_ glsa_  Groq gsk_  Heroku HRKU-  HuggingFace hf_ api_org_  Linear lin_api_ lin_oauth_
Notion ntn_  npm npm_  NVIDIA nvapi-  OpenAI,Anthropic sk-  OpenShift sha256~  Perplexity pplx-  PlanetScale pscale_tkn_
pscale_pw_ pscale_oauth_  Postman PMAK-  Prefect pnu_  Pulumi pul-  PyPI pypi-  Replicate r8_  RubyGems rubygems_
SendGrid SG.  Sentry sntryu_ sntrys_  Shopify shpat_ shpca_ shppa_ shpss_  Slack xapp- xoxa- xoxb- xoxe- xoxo- xoxp-
xoxr- xoxs-  Square sq0atp- sq0csp- EAAA  Stripe sk_live_ sk_test_ rk_live_ rk_test_  Tailscale tskey-  Vault hvb. hvs.
W&B wandb_v1_  xAI xai-  age AGE-SECRET-KEY-
"""
_BEGINNINGS = "|".join(re.escape(prefix) for line in _PREFIXES.split("  ") for prefix in line.split()[1:])
KNOWN_FORMS = re.compile(
    "|".join(
        (
            # With a digit; behind an underscore in a long word, unlike in hf_llama3_70b.
            rf"\b(?:{_BEGINNINGS})(?:(?<!_)(?=[\w.~=-]{{0,40}}\d)|(?=[\w-]{{0,40}}?(?=[A-Za-z]*\d)[^\W_]{{10}}))"
            r"[\w.~-]{10,}=*",
            r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",  # AWS
            r"\bAIza[\w-]{30,}",  # Google
            r"\bdapi[0-9a-f]{32}\b",  # Databricks
            r"\bv1\.0-[0-9a-f]{24}-[0-9a-f]{40,}",  # Cloudflare
            r"\beyJ[\w-]{8,}(?:\.[\w-]*){0,2}",  # JSON web token
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            r"(?i:(?<=\bbearer )|(?<=\bbearer\t))[\w.~+/=-]{8,}",
        )
    )
)
_URL_USER = re.compile(r"""://(?P<user>[^\s/?#@:"']*)(?::(?P<password>[^\s/?#"']*))?@""")
# From this length on, a user name in a URL is taken for a token.
_LONGEST_USER = 16
_URL = re.compile(r"""://[^\s"'<>]+""")
# What services call their keys in the query of a URL, beside the usual names.
_KEY_IN_URL = re.compile(r"[?&](?:key|code)=([^&#]*)")
_ELEMENT = re.compile(r"<(?P<name>[\w.:-]+)[^<>]{0,200}>(?P<value>[^<>]+)</")
_ENCODED = re.compile(r"%([0-9A-Fa-f]{2})")
_HOOK = re.compile(
    r"(?:://(?:web)?hooks?|\.webhook)\.[^/]{1,253}/|/(?:web)?hooks?(?:b2)?/|api\.telegram\.org/bot"
)
# A name, and what says that its value follows: = or : (behind a quote: "api_key": "X"), or a space behind an option.
_NAME = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]+)
        (?:(?P<equals>=(?!=)|["'\]\\]*[ \t]*[:?+]?=(?!=)[ \t]*)
          |(?P<colon>["'\\]*[ \t]*:(?!:|//)[ \t]*)
          |(?P<space>(?<=\w)(?:["'\\]*,?[\s\\]+|["'\\]+,|\Z)))""",
    re.VERBOSE,
)
# An option or a header's name at the end of a word: the next word is its value.
_OPEN_NAME = re.compile(r"""(?<![\w.-])(?P<name>[\w.-]+)(?:["'\\]*(?P<colon>:)|["'\\]*,?)\Z""")
_OPTION = re.compile(r"(?P<name>-[\w.-]+)(?P<colon>)")
# A setting whose value is the next word: LOGGER.API_KEY X of yacs, and what follows `set`: aws configure set NAME X.
_SETTING = re.compile(r"(?=[\w.]*[A-Z])\w+(?:\.\w+)+")
_SETTERS = ("set", "setenv", "config", "put", "add")
_SEVERAL = re.compile(r"(?i:.*(?<!pas)s[\d_-]*)")
# A value, and not an option, behind the name of a secret.
_WITH_DASH = re.compile(r"-(?!-)(?=.*[\dA-Z])[^\s=]{6,}=*")
_QUOTE = re.compile(r"""\\*["']""")
_REST_OF_QUOTED = {quote: re.compile(rf"[^{quote}\\]*(?:\\[\s\S]?[^{quote}\\]*)*") for quote in ("'", '"')}
_IN_QUERY = re.compile(r"""[^&#\s"'<>]*""")
_IN_LIST = re.compile(r"""[^\s,;&|"'}\])]*""")
_IN_SHELL = re.compile(r"""[^\s;&|"'`<>()]*""")
_TO_SPACE = re.compile(r"""[^\s"']*(?<![;,)\]}|&])""")
_LINE = re.compile(r"""[^\n"']*(?<!\s)""")
_BLOCK = re.compile(r"[|>][+-]?[ \t]*\n[ \t]+(?P<text>.*(?:\n[ \t]+.*)*)")
# The names at the beginning of a command line's word: the value reaches to the end of the word.
_FIRST_NAMES = re.compile(r"(?:[-+\w.]+=)*")
# A longer value is none of NOT_SECRET_VALUES.
_LONGEST_EXCEPTION = 200
_SCHEMES = ("basic", "bearer", "digest", "negotiate", "token", "apikey")
_SCHEME = re.compile(rf"(?i:{'|'.join(_SCHEMES)})[ \t]+")
_WORDS_OF_A_NAME = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_NAMED_VALUE = re.compile(r"value|b64|base64|url|\d+")

# Programs whose -p and -u mean something else: a partition, a port, a process.
_OTHER_MEANING = _words(
    """
    accelerate apptainer chrt conda cp deepspeed docker enroot flock gdb git helm horovodrun ionice jupyter kubectl
    lsof ltrace mkdir mpiexec mpirun nc ncat ncu nerdctl netstat nmap nsys numactl orterun patch perf pg_dump
    pg_restore pip podman ps psql py-spy pytest qsub rankscope read renice rsync salloc sbatch scp scancel sftp
    singularity sinfo squeue srun ssh strace su sudo tar taskset tensorboard time tmux torchrun
    """
)
_INTERPRETED = re.compile(r"python[\d.]*|.*\.(?:py|sh)", re.DOTALL)
_WANDB_KEY = re.compile(r"[0-9a-f]{40}")
_NO_PASSWORD = re.compile(rf"{_COUNT}|\d+(?:[:-]\d+)*(?:/\w+)?|(?:bf|fp|tf|int)\d+|[.~].*|.*/.*", re.DOTALL)
_USER_AND_PASSWORD = re.compile(r"(?!\d+:\d+\Z)[^\s:/=]+:(?!//)(?P<password>\S+)")
_SHELL_WORD = re.compile(
    r"""(?:"[^"\\]*(?:\\[\s\S]?[^"\\]*)*(?:"|\Z)|'[^']*(?:'|\Z)|\\[\s\S]?|[^\s"'\\;|&]+)+|[;|&]+"""
)
# Its value is a shell's text.
_SHELL_OPTION = re.compile(r"-\w*c|--(?:command|cmd|wrap|run)")
_DEEPEST = 4

Span = tuple[int, int]
Letters = list[tuple[str, int, int]]
"""The characters of a text that is written in another way, and where each is."""


def redacted_command(words: Sequence[str]) -> list[str]:
    """A command line for a record: each word with its secrets replaced, and the words that follow a secret option."""
    return [_replaced(word, spans) for word, spans in zip(words, _spans_of_words(words), strict=True)]


def redacted(text: str) -> str:
    """Any text for a record, such as a shell command or an error message."""
    return _replaced(text, _spans_of_text(text))


def secrets_of(words: Sequence[str]) -> list[str]:
    """The secrets themselves, where they must be searched for elsewhere."""
    pairs = zip(words, _spans_of_words(words), strict=True)
    return [word[start:end] for word, spans in pairs for start, end in _merged(spans)]


def is_secret_name(name: str, value: str = "") -> bool:
    """Whether an option, variable or setting of this name holds a secret; some do not with this value."""
    parts = [part.lower() for part in _WORDS_OF_A_NAME.findall(name)]
    while len(parts) > 1 and _NAMED_VALUE.fullmatch(parts[-1]):
        parts.pop()  # WEBHOOK_URL, API_KEY_2
    if not parts:
        return False
    last, before = parts[-1].rstrip("0123456789"), parts[-2] if len(parts) > 1 else ""
    values = (NOT_SECRET_VALUES[key] for key in ("", last) if key in NOT_SECRET_VALUES)
    if any(pattern.fullmatch(value) for pattern in values):
        return False
    if last.endswith("s") and last[:-1] not in ("pas", ""):
        last = last[:-1]
    if before == "pass" and before + last in SECRET_NAMES:
        return True
    if last.endswith("token"):
        return (last[: -len("token")] or before) not in NOT_SECRET
    if last.endswith("key"):
        return (last[: -len("key")] or before) in SECRET_KEYS
    return last in SECRET_NAMES or last.endswith(_SECRET_ENDS)


def _replaced(text: str, spans: Iterable[Span]) -> str:
    pieces, position = [], 0
    for start, end in _merged(spans):
        pieces += [text[position:start], REDACTED]
        position = end
    return "".join([*pieces, text[position:]])


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        elif end > start:
            merged.append((start, end))
    return merged


def _spans_of_words(words: Sequence[str], depth: int = 0) -> list[list[Span]]:
    """The secrets of each word, as (start, end)."""
    spans: list[list[Span]] = [[] for _ in words]
    name = before = ""
    for word, spans_of_word in zip(words, spans, strict=True):
        if name and word.lower() in _SCHEMES:  # Authorization: Bearer X
            continue
        is_value = word[:1] not in ("-", ";", "|", "&") or _WITH_DASH.fullmatch(word) is not None
        secret = _secret_part(name, word, 0, len(word)) if name and is_value else []
        spans_of_word += secret
        spans_of_word += _spans_of_text(word, depth, of_word=not _SHELL_OPTION.fullmatch(before))
        if not (secret and _SEVERAL.fullmatch(name)):
            name = ""
        # In a text, which may be JSON, only what is an option alone: commas and brackets are not of a word.
        last = _OPEN_NAME.search(word) if not depth else _OPTION.fullmatch(word)
        if last and (last["colon"] or last["name"].startswith("-")):
            name = last["name"]
        elif before in _SETTERS or _SETTING.fullmatch(word):
            name = word
        before = word
    for index, span in _passwords_of_programs(words):
        spans[index].append(span)
    return spans


def _spans_of_text(text: str, depth: int = 0, *, of_word: bool = False) -> list[Span]:
    """The secrets of a text. In a word of a command line, the value of its option is the rest of it."""
    spans = [match.span() for match in KNOWN_FORMS.finditer(text)]
    spans += [
        match.span("password" if match["password"] else "user")
        for match in _URL_USER.finditer(text)
        if match["password"] or len(match["user"]) >= _LONGEST_USER
    ]
    for url in _URL.finditer(text):
        if hook := _HOOK.search(text, *url.span()):
            spans.append((hook.end(), url.end()))
        spans += [match.span(1) for match in _KEY_IN_URL.finditer(text, *url.span())]
    for match in _ELEMENT.finditer(text):
        spans += _secret_part(match["name"], text, *match.span("value"))
    spans += _spans_of_names(text, of_word)
    if depth < _DEEPEST and _ENCODED.search(text):
        letters = _decoded(text)
        spans += _located(_spans_of_text(_text_of(letters), depth + 1), letters)
    if depth < _DEEPEST and re.search(r"""[\s"']""", text):
        words = [letters for match in _SHELL_WORD.finditer(text) if (letters := _unquoted(match))]
        for letters, inner in zip(words, _spans_of_words([*map(_text_of, words)], depth + 1), strict=True):
            spans += _located(inner, letters)
    return spans


def _decoded(text: str) -> Letters:
    return [
        (chr(int(match[1], 16)) if match[1] else match[0], *match.span())
        for match in re.finditer(_ENCODED.pattern + r"|[\s\S]", text)
    ]


def _unquoted(word: re.Match[str]) -> Letters:
    """A word as the shell hands it on: without quotes, of which it may have several, and without backslashes."""
    letters: Letters = []
    quote, is_escaped = "", False
    for index, letter in enumerate(word[0], word.start()):
        if letter == "\\" and quote != "'" and not is_escaped:
            is_escaped = True
        elif letter in (quote or "\"'") and not is_escaped:
            quote = "" if quote else letter
        else:
            letters.append((letter, index, index + 1))
            is_escaped = False
    return letters


def _text_of(letters: Letters) -> str:
    return "".join(letter for letter, _, _ in letters)


def _located(spans: Iterable[Span], letters: Letters) -> list[Span]:
    """Where these secrets of a text are in what it was made from."""
    return [(letters[start][1], letters[end - 1][2]) for start, end in spans if end > start]


def _spans_of_names(text: str, of_word: bool) -> Iterator[Span]:
    first_names = _FIRST_NAMES.match(text) if of_word else None
    whole_until = first_names.end() if first_names else 0
    position = 0
    while match := _NAME.search(text, position):
        name, spaced = match["name"], match["space"] is not None
        # The value may begin with a name: --env=TOKEN=X, --token --steps 3.
        position = match.end("name") if spaced else match.end()
        if not (is_secret_name(name) or _is_user_name(name)) or (spaced and not name.startswith("-")):
            continue
        start, end = _value(text, match, match.start() < whole_until)
        if spaced and text.startswith("-", start):
            continue
        for span in _secret_part(name, text, start, end):
            yield span
            position = max(end, position)


def _is_user_name(name: str) -> bool:
    parts = _WORDS_OF_A_NAME.findall(name)
    return bool(parts) and parts[-1].lower() in ("user", "login")


def _secret_part(name: str, text: str, start: int, end: int) -> list[Span]:
    """What of this name's value is a secret: all, the password of user:password, or nothing."""
    value = text[start:end] if end - start < _LONGEST_EXCEPTION else ""
    if is_secret_name(name, value):
        return [(start, end)]
    if _is_user_name(name) and (pair := _USER_AND_PASSWORD.match(text, start, end)):
        return [(pair.start("password"), end)]
    return []


def _value(text: str, match: re.Match[str], whole: bool) -> Span:
    """Where the value of a name begins and ends, without its quotes."""
    start = match.end()
    if match["equals"] and whole:
        return start, len(text)
    if quote := _QUOTE.match(text, start):
        if len(quote[0]) > 1:  # \"api_key\": \"X\"
            end = text.find(quote[0], quote.end())
            return quote.end(), len(text) if end < 0 else end
        return _matched(_REST_OF_QUOTED[quote[0]], text, quote.end())
    before = match.start() - 1
    if match["space"] is not None:
        return _matched(_TO_SPACE, text, start)
    if match["equals"]:
        mark = text[max(before, 0) : match.start()]
        pattern = (
            _IN_QUERY if mark in ("?", "&") else _IN_LIST if mark in (",", "{", "[", "(", ";") else _IN_SHELL
        )
        return _matched(pattern, text, start)
    if block := _BLOCK.match(text, start):
        return block.span("text")
    if scheme := _SCHEME.match(text, start):
        start = scheme.end()
    while before >= 0 and text[before] in " \t-":
        before -= 1
    begins_line = before < 0 or text[before] == "\n"
    to_line_end = begins_line or match["name"].lower().endswith(("authorization", "cookie"))
    return _matched(_LINE if to_line_end else _IN_LIST, text, start)


def _matched(pattern: re.Pattern[str], text: str, start: int) -> Span:
    match = pattern.match(text, start)
    return match.span() if match else (start, start)


def _passwords_of_programs(words: Sequence[str]) -> Iterator[tuple[int, Span]]:
    """Passwords behind -p, -u and login, which mean something else to some programs: (index of the word, span)."""
    means_other, expected = False, ""
    for index, word in enumerate(words):
        if expected and not word.startswith("-"):
            if expected == "-u" and (pair := _USER_AND_PASSWORD.fullmatch(word)):
                yield index, pair.span("password")
            elif (expected == "-p" and not _NO_PASSWORD.fullmatch(word)) or (
                expected == "login" and _WANDB_KEY.fullmatch(word)
            ):
                yield index, (0, len(word))
        expected = "login" if word == "login" or (expected == "login" and word.startswith("-")) else ""
        name = word.rpartition("/")[2]
        if name in _OTHER_MEANING:
            means_other = True
        elif name in ("login", "curl") or _INTERPRETED.fullmatch(name) or word[:1] in (";", "|", "&"):
            means_other = False  # docker login -p X
        elif word in ("-p", "-u") and not means_other:
            expected = word
