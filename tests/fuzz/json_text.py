"""The text of Kineto events, written in every way that JSON allows, and in some that it does not."""

from __future__ import annotations

import json

from fuzz.codes import Codes
from rankscope.model import COMPUTING_OPS, MEMORY_ARGS, SHAPE_ARGS
from rankscope.readers.kineto.reader import OP_CATEGORIES, TYPED_ARGS, WITH_TYPED_ARGS, WITHOUT_TYPED_ARGS

_SPACES = ("", "", "", " ", " ", "\n", "\t ", "\r\n", "\n" + " " * 20)
_CATEGORIES = (*WITHOUT_TYPED_ARGS, *OP_CATEGORIES, "kernel", "cuda_runtime", "")
_NAMES = (*COMPUTING_OPS[:2], "[memory]", WITH_TYPED_ARGS, "gemm", "é→😀", 'void f<g<"h\\">>(int)\n')
_ARGUMENTS = (*TYPED_ARGS, *MEMORY_ARGS, *SHAPE_ARGS, "Ev Idx", "dtype", "")
_STRINGS = (
    '"7"', '"-7"', '"007"', '"0x10"', '" 7"', '"7.5"', '"1e3"', '"abc"', '"true"', '"nan"', '""', '"cuda:0"', '"é"',
    '"😀"', r'"\u00E9\u4e2d"', r'"a\b\f\n\r\t\"\\"', r'"\/"', r'"\u0041"', r'"\ud83d\ude00"',
    '"' + "long " * 9 + r'\\\""',
)  # fmt: skip
_BAD_STRINGS = (
    r'"\u0000"', r'"\ud83d"', r'"\ude00"', r'"\ud83dx"', r'"\ud83d\u0041"', r'"\x"', r'"\u12"', '"\t"', '"', "'a'",
    '"a', '"\\"', '"\\', '"\\u"',
)  # fmt: skip
_NUMBERS = (
    "0", "1", "-1", "7", "100", "2147483648", "9007199254740993", "4611686018427387904", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "123456789012345678901234567890",
    "0.5", "-0.5", "1.25", "10.125", "2.50", "1.0005", "2.0005", "-2.0005", "0.0005", "1234567.1235", "0.4999999999",
    "0.1234567890123456789", "999999999999.999", "-999999999999.999", "3844446579863.905", "-3844446579863.905",
    "8796093022207.999", "8796093022208.001", "1234567890123.4567", "10.299999999999999", "123456.78900000001",
    "1700000000000000", "-1700000000000000", "9007199254740992", "9223372036854775",
)  # fmt: skip
_LONG_TIMES = ("1700000000000000.125", "12345678901234.4565", "9223372036854775.807", "9223372036854775.8075")
_ODD_NUMBERS = (
    "-0", "-0.0", "01", "1.", ".5", "+1", "-", "1e3", "1E+2", "1e-7", "1e400", "NaN", "Infinity", "1e", "1_0", "0.1e1",
)  # fmt: skip
_WORDS = ("null", "null", "true", "false", "nul", "True")


def events_text(codes: Codes) -> bytes:
    """Some events with commas between them."""
    space = codes.choice(_SPACES)
    # Times since 1970 in the first event decide how the DuckDB reader reads those of the others.
    first = f'{{"ts":{codes.choice(_LONG_TIMES)}}}' if codes.number(8) == 1 else "{}"
    written = [first]
    while not codes.ended and len(written) < 4:
        written.append(_event(codes))
    text = space + f"{space},{codes.choice(_SPACES)}".join(written) + codes.choice((*_SPACES, ",", ",\n"))
    data = text.encode()
    if codes.number(32) == 31:  # any byte anywhere
        at = codes.number(256) * len(data) // 256
        data = data[:at] + bytes([codes.number(256)]) + data[at + codes.number(2) :]
    return data


def _event(codes: Codes) -> str:
    fields: list[tuple[str, str]] = []
    for _ in range(codes.number(10)):
        key = codes.choice(
            (
                "ph",
                "cat",
                "cat",
                "name",
                "name",
                "pid",
                "tid",
                "id",
                "ts",
                "dur",
                "args",
                "args",
                "args",
                "bp",
            )
        )
        fields.append((json.dumps(key), _field(codes, key)))
    if codes.number(24):
        fields = list(dict(reversed(fields)).items())  # no key twice
    return _object(codes, fields)


def _field(codes: Codes, key: str) -> str:
    if codes.number(30) == 29:
        return _value(codes, 0)
    match key:
        case "args":
            names = [codes.choice(_ARGUMENTS) for _ in range(codes.number(6))]
            return _object(codes, [(json.dumps(name), _argument(codes)) for name in dict.fromkeys(names)])
        case "ts" | "dur":
            return codes.choice(_NUMBERS)
        case "cat":
            return json.dumps(codes.choice(_CATEGORIES), ensure_ascii=False)
        case "name":
            return json.dumps(codes.choice(_NAMES), ensure_ascii=bool(codes.number(2)))
        case _:
            return codes.choice((*_STRINGS, *_NUMBERS[:6], "null"))


def _argument(codes: Codes) -> str:
    if codes.number(12):
        return codes.choice((*_NUMBERS[:10], "null", '"allreduce"', "[[2, 3], []]", r'["a", "b\"c"]', "{}"))
    return _value(codes, 0)


def _value(codes: Codes, depth: int) -> str:
    match codes.number(12):
        case 0 | 1 | 2:
            return codes.choice(_NUMBERS)
        case 3 | 4 | 5:
            return codes.choice(_STRINGS)
        case 6:
            return codes.choice(_WORDS)
        case 7:
            return codes.choice(_ODD_NUMBERS)
        case 8:
            return codes.choice(_BAD_STRINGS) if codes.number(4) == 0 else "[]"
        case _ if depth > 4:
            return "[" * 60 + "]" * 60
        case 9:
            return _object(
                codes, [(codes.choice(_STRINGS), _value(codes, depth + 1)) for _ in range(codes.number(4))]
            )
        case _:
            space = codes.choice(_SPACES)
            items = [_value(codes, depth + 1) for _ in range(codes.number(5))]
            return f"[{space}" + f",{space}".join(items) + f"{codes.choice(_SPACES)}]"


def _object(codes: Codes, items: list[tuple[str, str]]) -> str:
    before, after = codes.choice(_SPACES), codes.choice(_SPACES)
    colon = codes.choice((":", ": ", ": ", " : "))
    return f"{{{before}" + f",{before}".join(f"{key}{colon}{value}" for key, value in items) + f"{after}}}"
