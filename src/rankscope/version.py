"""The version, in a module that imports nothing: packages below the public names need it too."""

__version__ = "0.2.0"
