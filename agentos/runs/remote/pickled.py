"""The user's own objects on their way between processes: pickled where that can be said clearly to have failed."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from typing import Any

from ...errors import NotPicklable

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, repr=False)
class PickledObject:
    """One object, pickled. It shows nothing of itself: task lists, logs and dashboards print what they carry."""

    data: bytes

    def __repr__(self) -> str:
        return f"<parcel of {len(self.data)} bytes>"


def pack(thing: Any, what: str, *, same_main: bool = False) -> PickledObject:
    """*thing*, ready to travel. Raises ``NotPicklable``, which calls it *what*.

    What is defined in ``__main__`` is found by its name only where that is the same module there (*same_main*).
    Elsewhere it has to travel itself, which cloudpickle can do, if the engine brought it.
    """
    reason = data = None
    try:
        data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - the user's object: its own methods may raise anything
        reason = _reason(error)
    cloudpickle = _cloudpickle()
    if cloudpickle is not None and (data is None or (b"__main__" in data and not same_main)):
        try:
            data = cloudpickle.dumps(thing)
        except Exception as error:  # noqa: BLE001 - see above
            data = None  # or it went by its name in a module that is another one there
            reason = _reason(error)  # pickle's own may be of what cloudpickle can do, such as a lambda
    if data is None:
        raise NotPicklable(what=what, detail=str(reason))
    return PickledObject(data)


def unpack(parcel: PickledObject, what: str) -> Any:
    """The object again. Raises ``NotPicklable``, which calls it *what*: its module may be missing here."""
    try:
        return pickle.loads(parcel.data)  # noqa: S301 - it comes from our own run, or goes to it
    except BaseException as error:  # noqa: BLE001 - see above
        raise NotPicklable(what=what, detail=f"it cannot be made again there: {_reason(error)}") from None


def _cloudpickle() -> Any:
    """The engine's own, if it has loaded one: nothing here depends on it."""
    return sys.modules.get("cloudpickle") or sys.modules.get("joblib.externals.cloudpickle")


def _reason(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
    except BaseException:  # noqa: BLE001 - an error whose text cannot be had
        return type(error).__name__
