"""Words of a script and what they become: quotes, variables, arrays. What is only known at run time is a mark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from rankscope.capture.bash.guards import ALWAYS, Guard, implies
from rankscope.capture.rank import FAMILIES

# The fields of a rank's Identity by the variables of launchers. PMI_LOCAL_RANK: Cray's; OMPI_COMM_WORLD_NODE_RANK is
# the number of a process on its node, whatever its name says.
RANK_FIELDS = {
    "PMI_LOCAL_RANK": "local_rank",
    "OMPI_COMM_WORLD_NODE_RANK": "local_rank",
    **{
        name: field
        for family in FAMILIES
        for field in ("rank", "local_rank", "node")
        for name in getattr(family, field).split("|")
        if name
    },
}
_BEGIN, _END = "\ue000", "\ue001"
MARK = re.compile(f"{_BEGIN}(.*?){_END}", re.DOTALL)
WITH_DEFAULT = re.compile(r"\$\{(\w+):?[-=](.*)\}", re.DOTALL)
ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"\$(\w+|[@*#?$!-])")
_OPERATOR = re.compile(r";;|&&|\|\||[;|&()\n]")
_REDIRECTION = re.compile(r"\d*(?:>>|>&|<&|&>>|&>|>\||<<<|<<-?|>|<)")


class Token(NamedTuple):
    text: str
    line: int
    is_word: bool


def mark(source: str) -> str:
    return f"{_BEGIN}{source}{_END}"


def source_of(text: str) -> str:
    """With each mark as the script has it."""
    return MARK.sub(lambda match: match[1], text)


def tokens(text: str) -> Iterator[Token]:
    """Words, with their quotes, and operators. Comments, redirections and here-documents are left out."""
    text = text.replace("\\\n", " ")
    at, line, skips, ends_at = 0, 1, False, ""
    while at < len(text):
        if text[at] == "\n" and ends_at:  # a here-document: skip it
            yield Token("\n", line, is_word=False)
            lines = text[at + 1 :].split("\n")
            count = next((i for i, row in enumerate(lines) if row.strip() == ends_at), len(lines) - 1) + 1
            at, line, ends_at = at + 1 + sum(len(row) + 1 for row in lines[:count]), line + count + 1, ""
            continue
        if text[at] in " \t\r":
            at += 1
        elif text[at] == "#":
            at = (text + "\n").find("\n", at)
        elif match := _REDIRECTION.match(text, at):
            at, skips = match.end(), True
            ends_at = "here" if match[0].lstrip("0123456789") in ("<<", "<<-") else ends_at
        elif text.startswith("((", at):
            end = text.find("))", at)
            end = len(text) if end < 0 else end + 2
            yield Token(text[at:end], line, is_word=True)
            at = end
        elif match := _OPERATOR.match(text, at):
            yield Token(match[0], line, is_word=False)
            line += match[0] == "\n"
            at = match.end()
        else:
            end = _word_end(text, at)
            if ends_at == "here":
                ends_at = text[at:end].strip("'\"")
            elif not skips:
                yield Token(text[at:end], line, is_word=True)
            skips = False
            line += text.count("\n", at, end)
            at = end


def _word_end(text: str, at: int) -> int:
    while at < len(text) and text[at] not in " \t\r\n;|&()<>":
        at = _part_end(text, at)
        if at < len(text) and text[at] == "(" and text[at - 1] == "=":  # an array
            at = _closing(text, at, "(", ")")
    return at


def _part_end(text: str, at: int) -> int:
    """The end of a quoted part, an expansion, or one character."""
    if text[at] == "\\":
        return min(at + 2, len(text))
    if text[at] in "'`":
        end = text.find(text[at], at + 1)
        return len(text) if end < 0 else end + 1
    if text[at] == '"':
        at += 1
        while at < len(text) and text[at] != '"':
            at = _part_end(text, at) if text[at] in "\\$`" else at + 1
        return min(at + 1, len(text))
    if text.startswith("$(", at):
        return _closing(text, at + 1, "(", ")")
    if text.startswith("${", at):
        return _closing(text, at + 1, "{", "}")
    return at + 1


def _closing(text: str, at: int, opens: str, closes: str) -> int:
    depth = 0
    while at < len(text):
        depth += (text[at] == opens) - (text[at] == closes)
        at = at + 1 if text[at] in opens + closes else _part_end(text, at)
        if not depth:
            return at
    return len(text)


class Variables:
    """What is assigned in the script. A value is a list of words; of a plain variable, one."""

    def __init__(self) -> None:
        self.guard = ALWAYS
        """When the command runs whose words are expanded: it sees what is assigned under the same conditions."""
        self._values: dict[str, list[tuple[Guard, list[str]]]] = {}

    def all_values(self) -> Iterator[tuple[str, Guard, list[str]]]:
        for name, values in self._values.items():
            yield from ((name, guard, value) for guard, value in values)

    def _assigned(self, name: str) -> list[str] | None:
        """The value that the present command sees; a mark, where it depends on what is not known here."""
        values = self._values.get(name)
        if not values:
            return None
        guard, value = values[-1]
        return (
            value
            if implies(self.guard, guard)
            else [mark(f"${name}, which depends on the rank or the environment")]
        )

    def expand(self, raw: str, *, splits: bool = True) -> list[str]:
        """The words that a word becomes."""
        words: list[str] = []
        current: str | None = None
        for value, quoted in self._parts(raw, quoted=not splits):
            if quoted and len(value) == 1:
                current = (current or "") + value[0]
                continue
            pieces = value if quoted else [piece for text in value for piece in split_words(text)]
            for index, piece in enumerate(pieces):
                starts = index or (not quoted and value[0][:1].isspace())
                if starts and current is not None:
                    words.append(current)
                    current = None
                current = (current or "") + piece
            if current is not None and not quoted and value and value[-1][-1:].isspace():
                words.append(current)
                current = None
        return words if current is None else [*words, current]

    def text(self, raw: str) -> str:
        """As one word."""
        return " ".join(self.expand(raw, splits=False))

    def _parts(self, raw: str, *, quoted: bool) -> Iterator[tuple[list[str], bool]]:
        """Each part's value, and whether it is not split at spaces."""
        at = 0
        while at < len(raw):
            end = _part_end(raw, at)
            part = raw[at:end]
            if name := _NAME.match(raw, at):
                end, part = name.end(), name[0]
            if part[0] == "'" and len(part) > 1:
                yield [part[1:-1]], True
            elif part[0] == '"' and len(part) > 1:
                yield [""], True
                for value, _ in self._parts_in_quotes(part[1:-1]):
                    yield value, True
            elif part[0] == "\\" and len(part) > 1:
                yield [part[1:]], True
            elif part[0] in "$`" and len(part) > 1:
                yield self._value(part), quoted
            else:
                yield [part], True
            at = end

    def _parts_in_quotes(self, raw: str) -> Iterator[tuple[list[str], bool]]:
        at = 0
        while at < len(raw):
            end = _part_end(raw, at) if raw[at] in "\\$`" else at + 1
            part = raw[at:end]
            if name := _NAME.match(raw, at):
                end, part = name.end(), name[0]
            is_value = part[0] in "$`" and len(part) > 1
            plain = part[1:] if part[0] == "\\" and part[1:] in ("$", '"', "\\", "`") else part
            yield (self._value(part) if is_value else [plain]), True
            at = end

    def _value(self, part: str) -> list[str]:
        expression = part[2:-1] if part.startswith("${") else part[1:]
        if part.startswith(("$(", "`")) or not expression:
            return [mark(part)]
        name = expression.removesuffix("[@]").removesuffix("[*]")
        if (value := self._assigned(name)) is not None:
            return value
        if match := WITH_DEFAULT.fullmatch(part):
            if (value := self._assigned(match[1])) is not None:
                return value
            if match[1] not in RANK_FIELDS:
                return [mark(f"${{{match[1]}:-{source_of(self.text(match[2]))}}}")]
            name = match[1]
        return [mark(f"${name}" if re.fullmatch(r"\w+|[@*]", name) else part)]

    def assign(self, raw: str, guard: Guard, line: int, note: Callable[[str], None]) -> None:
        match = ASSIGNED.fullmatch(raw)
        assert match is not None
        name, adds, raw_value = match.groups()
        self.guard = guard
        before = self._assigned(name) or []
        if raw_value.startswith("("):
            value = [
                word for token in tokens(raw_value[1:-1]) if token.is_word for word in self.expand(token.text)
            ]
            value = [*before, *value] if adds else value
        else:
            value = ["".join(before if adds else []) + self.text(raw_value)]
        if guard.always:
            self._values[name] = [(guard, value)]
        elif not guard.never:
            self._assign_if(name, before, value, line, note)

    def _assign_if(
        self, name: str, before: list[str], value: list[str], line: int, note: Callable[[str], None]
    ) -> None:
        """An assignment that depends on what is not known here."""
        unknown = self.guard.unknown
        if not before and unknown and all(re.match(rf"-z .*\b{name}\b", text) for text in unknown):
            self._values[name] = [(ALWAYS, [mark(f"${{{name}:-{source_of(' '.join(value))}}}")])]
        elif before and " ".join(value).startswith(" ".join(before)):
            added = source_of(" ".join(value))[len(source_of(" ".join(before))) :].strip()
            note(f"line {line}: '{added}' is added to ${name} only in some cases, and is left out")
        else:
            self._values.setdefault(name, []).append((self.guard, value))


def split_words(text: str) -> list[str]:
    """At spaces outside of marks."""
    return re.findall(f"(?:{_BEGIN}.*?{_END}|\\S)+", text, re.DOTALL)
