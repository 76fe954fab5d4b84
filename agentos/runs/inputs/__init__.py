"""Items in: from a file, a folder, a glob, words or standard input, each with an id that stays the same.

``open_items`` is the door. Whatever is wrong with an input is an ``InputError`` that names the place.
"""

from __future__ import annotations

from .errors import InputError
from .opening import Items, open_items
from .places import Kind, Place, place_of, words_of

__all__ = ["InputError", "Items", "Kind", "Place", "open_items", "place_of", "words_of"]
