"""Pickle the user's objects for another process, with clear errors where that fails."""

from __future__ import annotations

import pickle
import sys
from dataclasses import dataclass
from typing import Any

from ...errors import NotPicklable

_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True, repr=False)
class PickledObject:
    """One pickled object. Its ``repr`` hides the content: task lists, logs and dashboards print their arguments."""

    data: bytes

    def __repr__(self) -> str:
        return f"<pickled object of {len(self.data)} bytes>"


def pack(thing: Any, what: str, *, same_main: bool = False) -> PickledObject:
    """Pickle *thing*. Raises ``NotPicklable``, which calls it *what*.

    An object of ``__main__`` can be found by name only where that is the same module (*same_main*). Elsewhere it must
    be pickled by value, which cloudpickle does, if the engine has loaded it.
    """
    reason = data = None
    try:
        data = pickle.dumps(thing, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # noqa: BLE001 - the object's own methods may raise anything
        reason = _reason(error)
    cloudpickle = _cloudpickle()
    if cloudpickle is not None and (data is None or (b"__main__" in data and not same_main)):
        try:
            data = cloudpickle.dumps(thing)
        except Exception as error:  # noqa: BLE001 - see above
            data = None  # pickled by name, it would be looked up in another module there
            reason = _reason(error)  # pickle's own may be about what cloudpickle can do, such as a lambda
    if data is None:
        raise NotPicklable(what=what, detail=str(reason))
    return PickledObject(data)


def unpack(pickled: PickledObject, what: str) -> Any:
    """Unpickle the object. Raises ``NotPicklable``, which calls it *what*: its module may be missing here."""
    try:
        return pickle.loads(pickled.data)  # noqa: S301 - both ends belong to the same run
    except BaseException as error:  # noqa: BLE001 - see above
        raise NotPicklable(what=what, detail=f"it cannot be unpickled there: {_reason(error)}") from None


def _cloudpickle() -> Any:
    """Return cloudpickle if the engine has loaded it; it is not a dependency."""
    return sys.modules.get("cloudpickle") or sys.modules.get("joblib.externals.cloudpickle")


def _reason(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_LONGEST_REASON]
    except BaseException:  # noqa: BLE001 - an error without readable text
        return type(error).__name__
