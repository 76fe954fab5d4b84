"""Items from files, a folder, a glob, words or standard input, each with a stable id.

``open_items`` is the entry point. Every problem of an input is an ``InputError`` that names its position.
"""

from __future__ import annotations

from .input_error import InputError
from .input_location import InputLocation, Kind, locate_files, locate_input, split_words
from .open_items import Items, open_items

__all__ = ["InputError", "InputLocation", "Items", "Kind", "locate_files", "locate_input", "open_items", "split_words"]
