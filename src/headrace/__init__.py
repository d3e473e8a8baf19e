"""headrace: an inference provider in a box."""

__version__ = "0.1.0"
