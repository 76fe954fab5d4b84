"""Items in: from a file, a folder, a glob, words or standard input, each with an id that stays the same.

``open_items`` is the door. Whatever is wrong with an input is an ``InputError`` that names the place.
"""

from __future__ import annotations

from .input_error import InputError
from .input_location import Kind, Place, place_of, words_of
from .open_items import Items, open_items

__all__ = ["InputError", "Items", "Kind", "Place", "open_items", "place_of", "words_of"]
