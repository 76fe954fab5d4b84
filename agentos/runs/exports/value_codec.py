"""Encode a worker's value as JSON for the journal, and decode it.

Objects that JSON does not have are encoded by what they hold, wherever they stand in the value:

- pydantic models, dataclasses, attrs classes and named tuples as an object of their fields;
- mappings as an object, sequences and sets as a list (of a set in order, if it has one);
- dates and times in ISO 8601, a timedelta in seconds, an enum member as its value;
- UUID, Decimal, Fraction and paths as text, bytes as text if they are UTF-8, else as ``{"base64": "..."}``;
- arrays and numbers of numpy and similar libraries as lists and numbers; NaN and the infinities as text;
- keys of an object that are not text as the text of their JSON.

Libraries are recognised by the attributes of their classes, and never imported.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import enum
import json
import math
import os
import uuid
from collections.abc import Callable, Mapping, Sequence, Set
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from ...util.json_encoder import build_encoder

_encode = build_encoder()
_LONGEST_REPR = 2_000
_JSON_TYPES = frozenset({str, int, float, bool, list, dict, type(None)})
_AS_TEXT = (uuid.UUID, Decimal, Fraction, PurePath)
_UNNAMED_MODULES = ("builtins", "__main__", "__mp_main__")
_IN_ISO_8601 = (datetime.date, datetime.time)  # a datetime is a date


@dataclasses.dataclass(frozen=True, slots=True)
class EncodedValue:
    """A value as the journal has it.

    ``text`` is its JSON; a value that cannot be encoded has none, ``repr`` describes it, and ``problem`` says why.
    ``value`` is the decoded JSON: what every later reader gets. ``type_name`` is the class of the original, None for
    the types of JSON itself. ``redacted``: a secret was removed from it.
    """

    text: str | None
    repr: str | None = None
    type_name: str | None = None
    redacted: bool = False
    value: Any = None
    problem: str | None = None


class _NotJson(TypeError):
    """A part of the value cannot be encoded; the text says which and why."""


_NONE = EncodedValue(None)


def encode_value(value: Any, mask: Callable[[str], str] | None) -> EncodedValue:
    """Encode *value*, redacted by *mask*. None has neither text nor repr."""
    if value is None:
        return _NONE
    kind = type(value)
    name = None if kind in _JSON_TYPES else _name(kind)
    try:
        text, decoded = _encode_json(value)
    except Exception as error:  # noqa: BLE001 - whatever its own methods raise, it is a value, and not JSON
        return _describe(value, error, mask)
    masked = text if mask is None else mask(text)
    if masked == text:
        return EncodedValue(text, None, name, False, decoded)
    try:
        decoded = json.loads(masked)
    except ValueError:  # the redacted text is no JSON: a number was replaced, or half of an escape sequence
        decoded = _mask_inside(decoded, mask)  # type: ignore[arg-type]
        masked = _encode(decoded)
    return EncodedValue(masked, None, name, True, decoded)


def decode_value(text: str | None) -> Any:
    """Return the decoded value."""
    return None if text is None else json.loads(text)


def _encode_json(value: Any) -> tuple[str, Any]:
    """Return the JSON of *value*, and the same decoded. Raises whatever the methods of the value raise."""
    if type(value) is str and value.isascii():
        return _encode(value), value
    try:
        text = _encode(value)
        decoded = json.loads(text)
        if decoded == value:
            return text, decoded
    except Exception:  # noqa: BLE001, S110 - not JSON by itself
        pass
    # The encoder makes a list of a named tuple, and may make one key of two that are not text.
    text = _encode(_to_json(value))
    return text, json.loads(text)


def _to_json(value: Any) -> Any:
    """Return *value* as text, numbers, lists and dicts. Raises _NotJson for any other type."""
    if isinstance(value, enum.Enum):
        return _to_json(value.value)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else json.dumps(float(value))
    kind = type(value)
    if hasattr(kind, "model_dump"):  # pydantic
        return _to_json(_dump_model(value))
    if (fields := _fields_of(value, kind)) is not None or isinstance(value, Mapping):
        return _to_object(value if fields is None else fields)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _bytes_to_json(bytes(value))
    if isinstance(value, _AS_TEXT):
        return str(value)
    if isinstance(value, _IN_ISO_8601):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    if isinstance(value, Set):
        return _sorted([_to_json(each) for each in value])
    if isinstance(value, Sequence):
        return [_to_json(each) for each in value]
    if hasattr(kind, "dtype") and hasattr(kind, "tolist"):
        return _to_json(value.tolist())
    if hasattr(kind, "__fspath__"):
        return _to_json(os.fspath(value))
    raise _NotJson(f"{_name(kind)} has no JSON form")


def _fields_of(value: Any, kind: type) -> Mapping[Any, Any] | None:
    """Return the fields of a dataclass, an attrs class, a named tuple or an old model; None if it is none of these."""
    if hasattr(kind, "__fields__") and hasattr(kind, "dict"):  # pydantic 1
        return value.dict()  # type: ignore[no-any-return]
    if dataclasses.is_dataclass(kind):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(kind)}
    if hasattr(kind, "__attrs_attrs__"):
        return {field.name: getattr(value, field.name) for field in kind.__attrs_attrs__}
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return dict(zip(kind._fields, value, strict=True))
    return None


def _dump_model(value: Any) -> Any:
    try:
        return value.model_dump(mode="json", warnings=False)
    except Exception:  # noqa: BLE001 - it holds what pydantic cannot encode, perhaps bytes; we may be able to
        return value.model_dump(warnings=False)


def _to_object(value: Mapping[Any, Any]) -> dict[str, Any]:
    found = {key if type(key) is str else _to_key(key): _to_json(each) for key, each in value.items()}
    if len(found) != len(value):
        raise _NotJson("two keys of a dict have the same text")
    return found


def _to_key(key: Any) -> str:
    plain = _to_json(key)
    return plain if isinstance(plain, str) else _encode(plain)


def _bytes_to_json(data: bytes) -> Any:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _sorted(items: list[Any]) -> list[Any]:
    try:
        return sorted(items)
    except TypeError:
        return sorted(items, key=_encode)


def _mask_inside(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {mask(key): _mask_inside(each, mask) for key, each in value.items()}
    if isinstance(value, list):
        return [_mask_inside(each, mask) for each in value]
    text = value if isinstance(value, str) else _encode(value)
    masked = mask(text)
    return value if masked == text else masked


def _describe(value: Any, error: Exception, mask: Callable[[str], str] | None) -> EncodedValue:
    name = _name(type(value))
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a value that cannot show itself is still a value
        text = f"<{type(value).__name__}>"
    masked = text if mask is None else mask(text)
    problem = str(error) if isinstance(error, _NotJson) else f"encoding {name} raised {type(error).__name__}"
    return EncodedValue(None, masked[:_LONGEST_REPR], name, masked != text, problem=problem)


def _name(kind: type) -> str:
    """Return the name of the class with its module, which a script's own classes and those of Python need not have."""
    module = kind.__module__
    return kind.__qualname__ if module in _UNNAMED_MODULES else f"{module}.{kind.__qualname__}"
