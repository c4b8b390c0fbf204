"""A bash wrapper around nsys or ncu as a line of `rankscope profile`. The wrapper is searched, never run.

Found are the command with nsys or ncu, the variables that it uses, and the tests of ranks around it (if, case, loops
over ranks, an early exec). Anything else is said: a value that only the rank knows, or a condition on something else.
"""

from __future__ import annotations

import operator
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from rankscope.capture.rank import FAMILIES
from rankscope.errors import UsageError
from rankscope.nsight_options import take
from rankscope.ranges import as_ranges

# The fields of a rank's Identity by the variables of launchers. PMI_LOCAL_RANK: Cray's; OMPI_COMM_WORLD_NODE_RANK is
# the number of a process on its node, whatever its name says.
RANK_FIELDS = {
    "PMI_LOCAL_RANK": "local_rank",
    "OMPI_COMM_WORLD_NODE_RANK": "local_rank",
    **{
        name: which
        for family in FAMILIES
        for which in ("rank", "local_rank", "node")
        for name in getattr(family, which).split("|")
        if name
    },
}
_EVERY = frozenset(range(20_000))
_LARGEST = 1 << 16
# Words that may stand before nsys or ncu in a command that runs it.
_BEFORE = (
    *("exec", "time", "nohup", "env", "sudo", "numactl", "taskset"),
    *("srun", "mpirun", "mpiexec", "jsrun", "aprun"),
)
_HERE_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1(.*?)\n\s*\2(?=\n|\Z)", re.DOTALL)
_COMMENT = re.compile(r"(?<!\S)#.*")
_STATEMENT = re.compile(r"""(?:"[^"]*"|'[^']*'|[^;])+""")
_QUOTED = re.compile(r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*\"""")
_OPEN = re.compile(r"""["']|=\([^)]*$""")
_MOST_LINES = 50
"""Of one statement."""
_OUTPUT_OF = re.compile(r"\$\([^()]*\)|`[^`]*`")
_HIDDEN = str.maketrans(" \"';", "\ue000\ue001\ue002\ue003")
_SHOWN = str.maketrans("\ue000\ue001\ue002\ue003", " \"';")
"""Characters of a command whose output is taken, so that it stays one part of a word."""
_ASSIGNED = re.compile(r"(?:(?:export|local|declare|readonly|typeset) +(?:-\w+ +)*)?([A-Za-z_]\w*)(\+?)=(.*)")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)(?:\[[@*]\])?(:?[-=][^{}]*)?\}|\$([A-Za-z_]\w*)")
_WITH_DEFAULT = re.compile(r"\$\{(\w+):?[-=]([^{}]*)\}")
_VALUE_OF = re.compile(rf"{_OUTPUT_OF.pattern}|\$\{{[^{{}}]*\}}|\$\w+|\$[@*]")
_ARGUMENTS = re.compile(r"\$[@*\d]|\$\{[@*\d].*")
_PROFILER = re.compile(r"(?<![^\s\"'])(\S*/)?(nsys\s+profile|ncu)(?=\s)")
_END = re.compile(r"\s(?:&&|\|\||[|&<]|\d?>)")
_AFTER_TEST = re.compile(r"((?:! *)?(?:\[.*?\]\]?|\(\(.*?\)\)|test .*?)) *(&&|\|\|) *(.*)")
_LABEL = re.compile(r"\(? *([^()\s|]+(?: *\| *[^()\s|]+)*) *\)(.*)")
_COUNTED = re.compile(r"\{(\d+)\.\.(\d+)\}|\$\(seq\W(\d+)\W(\d+)\)")
_SIGNS: dict[str, Callable[[int, int], bool]] = {
    **dict.fromkeys(("-eq", "=", "=="), operator.eq),
    **dict.fromkeys(("-ne", "!="), operator.ne),
    **dict.fromkeys(("-lt", "<"), operator.lt),
    **dict.fromkeys(("-le", "<="), operator.le),
    **dict.fromkeys(("-gt", ">"), operator.gt),
    **dict.fromkeys(("-ge", ">="), operator.ge),
}
_SIGN = "(-[a-z]{2}|[=!<>]=?)"
_TEST = re.compile(rf"\$(\w+) *{_SIGN} *(\d[\d ]*)|(\d+) *{_SIGN} *\$(\w+)")
_HEADS = {"rank": "", "local_rank": "local:", "node": "node:"}
_AS_NSYS = re.compile(r"%q\{(\w+)\}")

Ranks = dict[str, frozenset[int]]
"""Selected numbers by field of an Identity."""


class Line(NamedTuple):
    """A command that replaces one of the wrapper's."""

    words: list[str]
    """For a shell; a variable of the environment is "$NAME" in them."""
    notes: list[str]
    """What is not taken over or has another meaning."""


class _Condition(NamedTuple):
    test: str
    """Of bash, with the values of variables; or what cannot be tested: in the loop of line 6."""
    holds: bool = True


@dataclass
class _Block:
    """An if, a case with its subject, a loop, a function: what holds in the present part of it."""

    conditions: list[_Condition] = field(default_factory=list)
    subject: str = ""

    def turn(self, test: str = "") -> None:
        """To the next part: what held does not; something else may."""
        if self.conditions:
            self.conditions[-1] = self.conditions[-1]._replace(holds=False)
        self.conditions += [_Condition(test)] if test else []


class _Value(NamedTuple):
    text: str
    conditions: tuple[_Condition, ...]
    """Under which it is assigned."""


def import_wrapper(path: Path) -> list[Line]:
    """One line for each command of the wrapper that runs nsys or ncu on some rank, and for each set of options that is
    defined for it."""
    data = path.read_bytes()
    if len(data) > _LARGEST:
        raise UsageError(
            f"{path} is too large for a wrapper",
            why=f"It has {len(data):,} bytes; scripts of up to {_LARGEST:,} are read.",
            hint="Write the line yourself: rankscope profile --help-all",
        )
    wrapper = _Wrapper(data.decode("utf-8", "replace"))
    if not wrapper.lines:  # a command may be put together for another script
        for name, value in wrapper.values.items():
            note = f"the command is in ${name}, which this file does not run itself"
            wrapper.find(value.text, value.conditions, [note])
    if not wrapper.lines:
        raise UsageError(
            f"{path} runs neither `nsys profile` nor ncu",
            why="No line of it does, as far as this can be read without running it.",
            hint="Write the line yourself: rankscope profile --help-all",
        )
    return wrapper.lines


class _Wrapper:
    """Reads the statements in their order."""

    def __init__(self, text: str) -> None:
        self.lines: list[Line] = []
        self.values: dict[str, _Value] = {}
        self._commented: dict[str, str] = {}
        self._loops: dict[str, tuple[str, _Block]] = {}
        """Numbers that a loop gives to a variable."""
        self._blocks: list[_Block] = []
        self._left: list[_Condition] = []
        """Where the script has not ended before the present statement."""
        statement, begin = "", 0
        text = _HERE_DOCUMENT.sub(lambda match: "\n" * match[3].count("\n") + "\n", text)
        for number, line in enumerate(text.split("\n"), 1):
            if line.lstrip().startswith("#") and (match := _ASSIGNED.fullmatch(line.strip("# \t"))):
                self._commented[match[1]] = _unquoted(match[3])
            begin = begin if statement else number
            statement += _COMMENT.sub("", line)
            if statement.endswith("\\"):
                statement = statement[:-1]
            elif _OPEN.search(_QUOTED.sub("", statement)) and number - begin < _MOST_LINES:
                statement += " "  # a text or an array goes on
            else:
                statement = _OUTPUT_OF.sub(lambda match: match[0].translate(_HIDDEN), statement)
                for part in _STATEMENT.findall(statement):
                    self._read(part.strip(), number)
                statement = ""

    def _read(self, text: str, number: int) -> None:
        word, _, rest = text.partition(" ")
        rest = rest.strip()
        block = self._blocks[-1] if self._blocks else _Block()
        if word in ("then", "do", "else"):
            if word == "else":
                block.turn()
            self._read(rest, number)
        elif word == "if":
            self._blocks.append(_Block([_Condition(self._test(rest))]))
        elif word == "elif":
            block.turn(self._test(rest))
        elif word == "case":
            self._blocks.append(_Block(subject=self._test(rest.removesuffix(" in"))))
        elif word in ("for", "while", "until", "select"):
            self._blocks.append(_Block([_Condition(f"in the loop of line {number}")]))
            name, _, items = rest.partition(" in ")
            items = _COUNTED.sub(
                lambda match: " ".join(
                    map(str, range(int(match[1] or match[3]), int(match[2] or match[4]) + 1))
                ),
                items,
            )
            if re.fullmatch(r"[\d ]+", items):
                self._loops[name] = (items, self._blocks[-1])
        elif text.endswith("{"):
            self._blocks.append(_Block([_Condition(f"in the function {word.strip('(){ ')}")]))
        elif word in ("fi", "done", "esac", "}"):
            del self._blocks[-1:]
        elif block.subject and (label := _LABEL.fullmatch(text)):
            block.turn("" if label[1] == "*" else f"{block.subject} == {label[1].replace('|', ' ')}")
            self._read(label[2].strip(), number)
        else:
            self._simple(text)

    def _simple(self, text: str) -> None:
        """An assignment or a command, which may stand behind a test."""
        conditions = (*self._left, *(condition for block in self._blocks for condition in block.conditions))
        while match := _AFTER_TEST.fullmatch(text):
            conditions += (_Condition(self._test(match[1]), match[2] == "&&"),)
            text = match[3]
        if match := _ASSIGNED.fullmatch(text):
            name, text = match[1], _unquoted(self._filled(match[3], conditions))
            before = self.values.get(name)
            if before is None and len(conditions) == 1 and re.search(rf"-z .*\b{name}\b", conditions[0].test):
                self.values[name] = _Value(f"${{{name}:-{text}}}", ())
            elif match[2] and before:
                self.values[name] = before._replace(text=f"{before.text} {text}")
            else:
                self.values[name] = _Value(text, conditions)
            return
        ends = conditions and text.split(" ")[0] in ("exec", "exit", "return")
        if not self.find(text, conditions, []) and ends:
            test = " && ".join(each.test if each.holds else f"! {each.test}" for each in conditions)
            # `exit` after a test that is not understood is an error's, not a rank's.
            if text.startswith("exec") or not _selected([_Condition(test)])[1]:
                self._left.append(_Condition(test, holds=False))

    def _filled(self, text: str, conditions: Sequence[_Condition]) -> str:
        """With the values of the variables that are assigned under no other conditions."""

        def value(match: re.Match[str]) -> str:
            name = match[1] or match[3]
            assigned = self.values.get(name)
            if assigned and set(assigned.conditions) <= set(conditions):
                return assigned.text
            return f"${name}" if match[2] is None or name in RANK_FIELDS else match[0]

        return _VARIABLE.sub(value, re.sub(r'"(\$\{\w+\[@\]\})"', r"\1", text))

    def _test(self, text: str) -> str:
        """A test, with the numbers that a loop gives to a variable."""
        text = re.sub(r"\(\(.*?\)\)", lambda test: re.sub(r"(?<![$\w{])([A-Za-z_])", r"$\1", test[0]), text)
        for name, (numbers, block) in self._loops.items():
            text, used = re.subn(rf"\$\{{?{name}\b\}}?", numbers, text)
            if used:
                block.conditions.clear()
        return self._filled(text, [condition for block in self._blocks for condition in block.conditions])

    def find(self, text: str, conditions: tuple[_Condition, ...], notes: list[str]) -> bool:
        """Add the line of a command that runs nsys or ncu; False where it does not."""
        match = _PROFILER.search(text)
        before = self._filled(text[: match.start()], conditions).split() if match else []
        if match is None or (before and before[0] not in _BEFORE):
            return False
        options = _END.split(text[match.end() :])[0]
        for name in re.findall(r"\$\{?(\w+)", options):
            if name in self._commented and name not in self.values:
                family = name.partition("_")[0]
                beside = {f"${key}": each.text for key, each in self.values.items() if key.startswith(family)}
                for source, value in {f"${name}": self._commented[name], **beside}.items():
                    if value.strip().startswith("-"):
                        note = f"${name} is commented out; this line has the options of {source}"
                        given = re.sub(rf"\$\{{?{name}\b\}}?", value.replace("\\", r"\\"), text)
                        self.find(given, conditions, [*notes, note])
                return True
        ranks, unknown = _selected(conditions)
        if all(ranks.values()):
            notes += [f"the condition is left out: {test}" for test in unknown]
            path = self._filled((match[1] or "") + match[2].split()[0], conditions)
            self.lines.append(_line(path, before, _words(self._filled(options, conditions)), ranks, notes))
        return True


def _unquoted(text: str) -> str:
    """A value as it is split into words: of an array, its elements."""
    if text.startswith("("):
        return text[1:].removesuffix(")")
    return text[1:].removesuffix(text[0]) if text[:1] in ("'", '"') else text


def _words(text: str) -> list[str]:
    try:
        words = shlex.split(text)
    except ValueError:  # a quote that does not end
        words = text.split()
    return [word.translate(_SHOWN) for word in words]


def _selected(conditions: Sequence[_Condition]) -> tuple[Ranks, list[str]]:
    """The ranks on which all of these hold; and what is no test of one field of a rank."""
    ranks: Ranks = {}
    unknown = []
    for test, holds in conditions:
        has_or = re.search(r"\|\||\s-o\s", test)
        for part in [test] if has_or or not holds else re.split(r"&&|\s-a\s", test):
            alternatives = [
                [_comparison(each.strip()) for each in re.split(r"&&|\s-a\s", alternative)]
                for alternative in re.split(r"\|\||\s-o\s", part)
            ]
            fields = {field for all_of in alternatives for field, _ in all_of}
            name = fields.pop()
            if fields or not name:
                text = " ".join(_without_brackets(part).split())
                unknown.append(text if holds else f"not ({text})")
                continue
            ranks[name] = frozenset(
                number
                for number in ranks.get(name, _EVERY)
                if any(all(fits(number) for _, fits in all_of) for all_of in alternatives) == holds
            )
    return ranks, unknown


def _without_brackets(text: str) -> str:
    return re.sub(r"\[\[?|\]\]?|\(\(|\)\)|(?<!\S)test\s|\"", " ", text)


def _comparison(text: str) -> tuple[str, Callable[[int], bool]]:
    """The field of a rank that is compared, and whether a number of it fits; "" where it is something else."""
    is_whole = text.count("[[") == text.count("]]") and text.count("((") == text.count("))")
    match = _TEST.fullmatch(_without_brackets(text).strip("! "))
    name, sign, right = (
        (match.group(1, 2, 3) if match[1] else match.group(6, 5, 4)) if match else ("", "", "")
    )
    negated = text.startswith("!")
    if name not in RANK_FIELDS or sign not in _SIGNS or (negated and not is_whole):
        return "", bool
    compare, numbers, left = _SIGNS[sign], [*map(int, right.split())], bool(match and match[1])
    some = any if compare is operator.eq else all

    def fits(value: int) -> bool:
        return some(compare(*((value, each) if left else (each, value))) for each in numbers) != negated

    return RANK_FIELDS[name], fits


def _line(path: str, before: list[str], given: list[str], ranks: Ranks, notes: list[str]) -> Line:
    tool = PurePosixPath(path).name
    before = [word for word in before if word not in ("exec", "nohup", "time")]
    if before[:1] == ["sudo"]:
        notes.append("sudo is left out; --run-as USER runs nsys as root and the job as USER")
        before = []
    taken = take(tool, [word for item in given for word in _with_defaults(item, notes)])
    notes += [f"{option} is left out. {reason}." for option, reason in taken.refused]
    # A field that no selector can combine with the others is said.
    names = [name for name in ("local_rank", "rank", "node") if name in ranks]
    texts: dict[str, str] = {name: as_ranges(sorted(ranks[name])) for name in names}
    first, second, *others = [*names, "", ""]
    notes += [
        f"the condition on the {name} ({texts[name]}) is left out: --ranks joins two fields at most"
        for name in filter(None, others)
    ]
    selector = _HEADS[first] + texts[first] if first else "all"
    selector += f"@{second}s:{texts[second]}" if second else ""
    words = [*map(_quoted, before), *f"rankscope profile --tool {tool} --ranks {selector}".split()]
    if "/" in path:
        words += [f"--{tool}", _quoted(path)]
    if folder := _folder(taken.output, notes):
        words += ["-o", _quoted(folder)]
    for word in taken.words:
        if any(not _is_of_environment(source) for source in _VALUE_OF.findall(word)):
            notes.append(f"{word} is left out: its value is known only on the rank")
        else:
            words.append(_quoted(word))
    if not any(_ARGUMENTS.match(source) for word in taken.application for source in _VALUE_OF.findall(word)):
        words += map(_quoted, taken.application)
    if tool == "ncu" and not any("launch-count" in word for word in taken.words):
        notes.append(
            "ncu profiles every launch that matches; rankscope the first 32 (--launch-count 0 is all)"
        )
    return Line(words, list(dict.fromkeys(notes)))


def _is_of_environment(source: str) -> bool:
    return re.fullmatch(r"\$\w+", source) is not None and source[1:] not in RANK_FIELDS


def _with_defaults(word: str, notes: list[str]) -> list[str]:
    """A word with the defaults of variables in it; nothing, where it is options that only the environment has."""
    for name, default in _WITH_DEFAULT.findall(word):
        notes.append(f"${name} may be set in the environment; its default is taken: {default}")
    text = _WITH_DEFAULT.sub(r"\2", word)
    if re.fullmatch(r"\$\w*(OPT|ARG|EXTRA|PARAM|FLAG|CMD)\w*", text):
        notes.append(f"{text} is not known here: add its options to the line")
        return []
    return text.split() if _WITH_DEFAULT.fullmatch(word) else [text]


def _folder(output: str | None, notes: list[str]) -> str | None:
    """The folder of the reports, up to the first part that differs from rank to rank."""
    parts: list[str] = []
    for part in _AS_NSYS.sub(r"$\1", output or "").split("/")[:-1]:
        sources = _VALUE_OF.findall(part)
        if re.search(r"%[hpni]", part) or any(source[1:] in RANK_FIELDS for source in sources):
            break
        if dynamic := [source for source in sources if not _is_of_environment(source)]:
            notes.append(
                f"the folder of the reports is left out: {dynamic[0]} in its name is known only on the rank, and may "
                "differ between ranks. rankscope makes one folder for the job; -o DIR names another"
            )
            return None
        parts.append(re.sub(r"\$(\w+)", r"%q{\1}", part))
    return "/".join(parts) or None


def _quoted(word: str) -> str:
    if not re.search(r"\$\w", word):
        return shlex.quote(word)
    text = re.sub(r'([\\"`])', r"\\\1", word)
    return f'"{text}"'
