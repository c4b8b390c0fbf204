"""The colours of charts and of the viewer, light and dark: the palette of Okabe and Ito, safe for colour blindness.

Compute is blue, transfer orange, waiting for another rank a pale orange, idle grey; kernels have the colour of their
family. Their lightness differs too. Pages use them as CSS variables: `var(--compute)`.
"""

_COLOURS = {
    "bg": ("#ffffff", "#0e1116"),
    "panel": ("#f6f7f9", "#161b22"),
    "line": ("#dfe3e8", "#2b323b"),
    "ink": ("#1b1f24", "#e6edf3"),
    "ink-2": ("#57606a", "#9aa5b1"),
    "ink-3": ("#656d76", "#86919d"),
    "accent": ("#0b62d6", "#6cb0ff"),
    "compute": ("#0072b2", "#3aa0e0"),
    "comm": ("#e69f00", "#f0b429"),
    "wait": ("#f7dfaf", "#66521f"),
    "copy": ("#56b4e9", "#7cc7f2"),
    "idle": ("#eaeef2", "#1d242d"),
    "late": ("#e9a18b", "#8a4531"),
    "bubble": ("#98a2ad", "#59636e"),
    "backward": ("#00785a", "#2fc79c"),
    "gemm": ("#0072b2", "#3aa0e0"),
    "attention": ("#009e73", "#2fc79c"),
    "normalisation": ("#cc79a7", "#e39bc4"),
    "elementwise": ("#b9c46a", "#c9d17a"),
    "optimizer": ("#8c564b", "#c08a78"),
    "kernel": ("#8a97a6", "#93a1b1"),
    "op": ("#c9d1da", "#3d4855"),
    "annotation": ("#d8cbe8", "#4d4164"),
    "runtime": ("#dde5d4", "#3c4a38"),
    "sync": ("#e9c3b5", "#6b4034"),
    "python": ("#e4e0d2", "#47432f"),
    "other": ("#e2e5e9", "#39414a"),
    "on-compute": ("#ffffff", "#06121b"),
    "on-light": ("#1b1f24", "#e6edf3"),
    "on-comm": ("#1b1400", "#1b1400"),
    "hot": ("#fdf1ec", "#33201a"),
    "chosen": ("#eef4fd", "#16263a"),
    "bad": ("#c2410c", "#ff8a5c"),
    "warn": ("#96600f", "#e3b341"),
    "ok": ("#15803d", "#56d364"),
    "s1": ("#0072b2", "#4fb0ee"),
    "s2": ("#d55e00", "#ff8a4c"),
    "s3": ("#009e73", "#2fc79c"),
    "s4": ("#b0568c", "#e39bc4"),
    "s5": ("#8a6d00", "#e0c341"),
    "s6": ("#3c8dbc", "#9ad4f5"),
    "s7": ("#57606a", "#9aa5b1"),
}
"""On a light and on a dark background."""
LIGHT, DARK = ({name: pair[theme] for name, pair in _COLOURS.items()} for theme in (0, 1))
THEMES = {"light": LIGHT, "dark": DARK}


def style_variables(theme: str) -> str:
    """The declarations for a style sheet: '--bg: #fff; …'."""
    return " ".join(f"--{name}: {colour};" for name, colour in THEMES[theme].items())
