"""Names of kernels and ops for people: without what says nothing, cut where they stop differing.

'void at::native::(anonymous namespace)::fill<float>(int)' is 'fill', 'aten::mm' is 'mm'. A kernel that applies a
function has it beside its name: 'vectorized_elementwise_kernel…GeluCUDAKernelImpl'. Names that would then look the same
show the first word in which they differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from os.path import commonprefix

from rankscope.units import display_width, fitting, middle_cut

Parts = tuple[tuple[int, int], ...]
"""Ranges of characters, in order."""

COLOURED = ("gemm", "attention", "normalisation", "elementwise", "optimizer", "comm", "kernel")
"""Groups of kernels and ops that have a hue of their own on the timeline; the last one is that of all other kernels."""
_ENGINE = "autograd::engine::evaluate_function: "
_CPP = re.compile(r"::|^void |\w<.*>|\w\((?:[^()]*[*&]|(?:unsigned|bool|char|int|long|float|double)\b)")
_UNNAMED = re.compile(r"\(anonymous namespace\)|<unnamed>|operator\(\)")
_RETURN_TYPE = re.compile(r"(?:^void|::type)$")
_WORD = re.compile(r"\w")
_QUALIFIED = re.compile(r"(?:\w+::)*(\w+)")
# Kernels that apply a function: its name says more than theirs. Some functions apply another one in turn.
_APPLIES = re.compile(r"elementwise|multi_tensor_apply|reduce_kernel|index_kernel")
_FUNCTION = re.compile(
    r"\b(?!gpu_kernel_impl|[AB]UnaryFunctor|BinaryFunctor)"
    r"(?:[A-Za-z_]\w*(?:[Kk]ernel|_cuda|[Ff]unctor|Impl|Ops)\w*|launch_\w+)"
)
# Kernels of CUTLASS: the name is the first template argument.
_WRAPPERS = frozenset({"Kernel", "Kernel2", "device_kernel"})
_LEAST_PART = 8
"""Cells; with less room most of the text would be ellipses."""


def shorten_name(name: str, width: int) -> str:
    """One name in at most `width` cells."""
    return shorten_names([name], width)[0]


def shorten_names(names: Sequence[str], width: int | None = None, verbatim: bool = False) -> list[str]:
    """The names of one column or chart, each in at most `width` cells; different names stay different.

    `verbatim`: only what the width demands is cut.
    """
    shown = shown_parts(names, width, verbatim)
    return [_joined(name, parts) for name, parts in zip(names, shown, strict=True)]


def shown_parts(names: Sequence[str], width: int | None = None, verbatim: bool = False) -> list[Parts]:
    """For each of `names`, the ranges of characters that `shorten_names` keeps."""
    parts = {name: ((0, len(name)),) if verbatim else _essence(name) for name in dict.fromkeys(names)}
    if not verbatim:
        _tell_apart(parts, _word_at)
        for name in (name for alike in _alike(parts, parts) for name in alike):
            parts[name] = ((0, len(name)),)
    if width is not None:
        short = {name: _joined(name, ranges) for name, ranges in parts.items()}
        cut = {text: _without_middle(text, width) for text in short.values()}
        if width >= _LEAST_PART:
            _tell_apart(cut, lambda text, index, _: _around(text, index, width))
        parts = {name: _within(parts[name], cut[text]) for name, text in short.items()}
    return [parts[name] for name in names]


def short_forms(names: Iterable[str]) -> dict[str, str]:
    """By name, what it is called alone, of those that become shorter."""
    forms = ((name, _joined(name, _essence(name))) for name in names)
    return {name: form for name, form in forms if form != name}


def bare_name(name: str) -> str:
    """A C++ name without its return type, namespaces, template arguments and parameters; other names as they are."""
    (start, end), *_ = _essence(name)
    return name[start:end]


def applied_function(kernel: str) -> str:
    """The function that a kernel such as vectorized_elementwise_kernel applies, or an empty text."""
    _, *functions = _essence(kernel)
    return "".join(kernel[start:end] for start, end in functions)


@lru_cache(maxsize=16384)
def _essence(name: str) -> Parts:
    """The function's own name, and the function that it applies; the whole of other texts."""
    begin = len(_ENGINE) if name.startswith(_ENGINE) else 0
    if not _CPP.search(name, begin):
        return ((begin, len(name)),)
    plain = _UNNAMED.sub(lambda match: "_" * len(match[0]), name)
    core = _core(plain, begin)
    if core is None:
        return ((begin, len(name)),)
    start, end = core
    arguments = plain[end:]
    if name[start:end] in _WRAPPERS and (inner := _core(re.split("[,>]", arguments[1:])[0], 0)):
        return ((end + 1 + inner[0], end + 1 + inner[1]),)
    if _APPLIES.search(name, start, end) and arguments.startswith("<"):
        match = _FUNCTION.search(plain, end)
        if match:
            return (core, match.span())
    return (core,)


def _core(text: str, begin: int) -> tuple[int, int] | None:
    """Start and end of the identifier before template arguments and parameters; None if it is no C++ name."""
    depth, start, end = 0, begin, 0
    for index in range(begin, len(text)):
        char = text[index]
        if char in "<({":
            if depth == 0 and not end and index > start and _is_word(text[index - 1]):
                end = index
            if depth == 0 and end and char == "(":
                break
            depth += 1
        elif char in ">)}":
            depth -= 1
        elif depth == 0 and char == ":":
            start, end = index + 1, 0
        elif depth == 0 and char == " ":
            if not _RETURN_TYPE.search(text, begin, index):
                return None  # a sentence
            start, end = index + 1, 0
    end = end or len(text)
    return (start, end) if depth >= 0 and _WORD.match(text, start, end) else None


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def _joined(text: str, parts: Parts) -> str:
    """The parts, with an ellipsis between them, and at an end where a word is cut."""
    if not parts:
        return ""
    before, after = ("…" * is_inside_word(text, index) for index in (parts[0][0], parts[-1][1]))
    return before + "…".join(text[begin:end] for begin, end in parts) + after


def is_inside_word(text: str, index: int) -> bool:
    """Whether a cut in front of the character at `index` divides a word."""
    return 0 < index < len(text) and _is_word(text[index - 1]) and _is_word(text[index])


def _tell_apart(parts: dict[str, Parts], differing: Callable[[str, int, Parts], Parts]) -> None:
    """Of names that look alike, show where they differ: at the end of their common beginning."""

    def split(names: list[str]) -> None:
        index = len(commonprefix(names))  # noqa: RUF071 - characters, not path components
        for name in names:
            parts[name] = differing(name, index, parts[name])
        for alike in _alike(parts, names):
            if len(alike) < len(names):
                split(alike)

    for alike in _alike(parts, parts):
        split(alike)


def _alike(parts: Mapping[str, Parts], names: Iterable[str]) -> list[list[str]]:
    """Groups of names that look the same."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(_joined(name, parts[name]), []).append(name)
    return [group for group in groups.values() if len(group) > 1]


def _word_at(name: str, index: int, parts: Parts) -> Parts:
    """With the word at `index`, or the next one; one in front of the name with all that stands between them."""
    while is_inside_word(name, index):
        index -= 1
    match = _QUALIFIED.search(name, index)
    if match is None:
        return parts
    if match.end() <= parts[0][1]:
        return ((match.start(), parts[0][1]), *parts[1:])
    inside = any(begin <= match.start(1) < end for begin, end in parts)
    return parts if inside else tuple(sorted((*parts, match.span(1))))


def _without_middle(text: str, width: int) -> Parts:
    if display_width(text) <= width:
        return ((0, len(text)),)
    if width <= 0:
        return ()
    left, right = middle_cut(text, width)
    return (0, left), (right, len(text))


def _around(text: str, index: int, width: int) -> Parts:
    """The beginning of `text` and what stands at `index`, and the end if it fits."""
    if display_width(text) <= width:
        return ((0, len(text)),)
    left, right = middle_cut(text, width)
    if index < left or index >= right:
        return (0, left), (right, len(text))
    head = fitting(text, width // 4)
    room = width - display_width(text[:head]) - 2
    start = max(head, index - room // 4)
    if display_width(text[start:]) <= room + 1:  # the end fits, without a second ellipsis
        start = len(text) - fitting(text[::-1], room + 1)
        return (0, head), (max(start, head), len(text))
    return (0, head), (start, start + fitting(text[start:], room))


def _within(parts: Parts, cut: Parts) -> Parts:
    """The ranges of a name that are left when `cut` is applied to its joined parts."""
    ranges, done = [], 0
    for begin, end in parts:
        for low, high in ((max(a, done), min(b, done + end - begin)) for a, b in cut):
            if low < high:
                ranges.append((begin + low - done, begin + high - done))
        done += end - begin + len("…")
    return tuple(ranges)
