"""rankscope: see where every rank's time goes."""

__version__ = "0.1.0"

__all__ = ["__version__"]
