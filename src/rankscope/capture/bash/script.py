"""The commands of a script, each with the condition under which it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rankscope.capture.bash.conditions import compared, condition
from rankscope.capture.bash.guards import ALWAYS, NEVER, Guard, both, either, opposite
from rankscope.capture.bash.words import ASSIGNED, Variables, tokens

_DECLARATIONS = ("export", "local", "declare", "readonly", "typeset")
_ENDS = ("exec", "exit", "return")


class Command(NamedTuple):
    words: list[str]
    guard: Guard
    line: int


class Script:
    """Walks through a script, block by block; ``commands`` are the simple ones, ``notes`` what was not understood."""

    def __init__(self, text: str) -> None:
        self.variables = Variables()
        self.commands: list[Command] = []
        self.notes: list[str] = []
        self._tokens = list(tokens(text))
        self._at = 0
        self._gone = NEVER
        while self._at < len(self._tokens):
            before = self._at
            self._block((), ALWAYS)
            self._at = max(self._at, before + 1)  # a keyword without its beginning

    def _peek(self) -> str:
        return self._tokens[self._at].text if self._at < len(self._tokens) else ""

    def _block(self, ends: Sequence[str], guard: Guard) -> str:
        """Statements up to one of these keywords, which is returned."""
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.text in ends:
                self._at += 1
                return token.text
            if token.text in ("fi", "done", "esac", "then", "else", "elif", "do", "}", ")"):
                return ""
            if token.text in ("\n", ";", "&", "|", "&&", "||", ";;", "("):
                self._at += 1
            elif token.text == "if":
                self._if(guard)
            elif token.text == "case":
                self._case(guard)
            elif token.text in ("for", "while", "until", "select"):
                self._skip_to("do")
                self._block(("done",), both(guard, Guard(unknown=(f"in the loop of line {token.line}",))))
            elif token.text == "{":
                self._at += 1
                self._block(("}",), guard)
            elif token.text == "function" or [t.text for t in self._tokens[self._at + 1 : self._at + 3]] == [
                "(",
                ")",
            ]:
                name = self._tokens[self._at + (token.text == "function")].text
                self._skip_to("{")
                self._block(("}",), both(guard, Guard(unknown=(f"in the function {name}",))))
            else:
                self._list(guard, ())
        return ""

    def _skip_to(self, word: str) -> None:
        while self._at < len(self._tokens) and self._peek() != word:
            self._at += 1
        self._at += 1

    def _if(self, guard: Guard) -> None:
        earlier = NEVER
        self._at += 1
        while True:
            holds = self._list(both(guard, opposite(earlier)), ("then",))
            branch = both(opposite(earlier), holds)
            end = self._block(("elif", "else", "fi"), both(guard, branch))
            earlier = either(earlier, branch)
            if end == "else":
                self._block(("fi",), both(guard, opposite(earlier)))
            if end != "elif":
                return

    def _case(self, guard: Guard) -> None:
        subject = self.variables.text(self._tokens[self._at + 1].text)
        self._skip_to("in")
        earlier = NEVER
        while self._at < len(self._tokens) and self._peek() != "esac":
            patterns = []
            while self._at < len(self._tokens) and self._peek() not in (")", "esac"):
                token = self._tokens[self._at]
                patterns += [self.variables.text(token.text)] if token.is_word else []
                self._at += 1
            if self._peek() == "esac":
                break
            self._at += 1
            matches = NEVER
            for pattern in patterns:
                matches = either(matches, ALWAYS if pattern == "*" else compared(subject, "==", pattern))
            self._block((";;",), both(guard, both(opposite(earlier), matches)))
            earlier = either(earlier, matches)
        self._at += 1

    def _list(self, guard: Guard, until: Sequence[str]) -> Guard:
        """Commands joined by && and ||, up to the end of the line or a keyword; whether the last one succeeds."""
        holds = ALWAYS
        operator = ""
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if token.text in until:
                self._at += 1
                return holds
            if token.text in ("\n", ";", "&", ";;", ")"):
                if not until:
                    return holds
                self._at += 1
                continue
            if not token.is_word:
                operator = token.text
                self._at += 1
                continue
            when = both(guard, holds if operator == "&&" else opposite(holds) if operator == "||" else ALWAYS)
            result = self._simple(when)
            join = both if operator == "&&" else either
            holds = join(holds, result) if operator in ("&&", "||") else result
        return holds

    def _simple(self, guard: Guard) -> Guard:
        """One command, or a test: whether it succeeds, as far as that can be told."""
        line = self._tokens[self._at].line
        raw: list[str] = []
        inside_test = self._peek() == "[["
        negated = self._peek() == "!"
        self._at += negated
        while self._at < len(self._tokens):
            token = self._tokens[self._at]
            if not token.is_word and not (inside_test and raw and raw[-1] != "]]" and token.text != "\n"):
                break
            raw.append(token.text)
            self._at += 1
            inside_test = inside_test or raw == ["[["]
        tested = condition(raw, self.variables)
        if tested is not None:
            return opposite(tested) if negated else tested
        self._run(raw, both(guard, opposite(self._gone)), line)
        if not negated and raw[:1] not in (["command"], ["which"], ["false"]):
            return ALWAYS
        return Guard(unknown=(f"{'! ' * negated}{' '.join(raw)}",))

    def _run(self, raw: list[str], guard: Guard, line: int) -> None:
        if raw[:1] and raw[0] in _DECLARATIONS:
            raw = [word for word in raw[1:] if not word.startswith("-")]
            raw = [word for word in raw if ASSIGNED.fullmatch(word)]
        while raw and ASSIGNED.fullmatch(raw[0]):
            self.variables.assign(raw.pop(0), guard, line, self._note)
        if not raw or guard.never:
            return
        self.variables.guard = guard
        words = [word for item in raw for word in self.variables.expand(item)]
        self.commands.append(Command(words, guard, line))
        # `exit` after a check that is not understood is an error's, not a rank's.
        if raw[0] in _ENDS and not (raw[0] != "exec" and guard.unknown):
            self._gone = either(self._gone, guard)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
