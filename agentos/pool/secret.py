"""A holder for a secret that is not a string, so that nothing shows it by accident."""

from __future__ import annotations

from typing import NoReturn


class Secret:
    """Holds one secret; only :meth:`reveal` gives it back.

    Deliberately not a ``str``: a subclass would leak through join, slicing, json and pickle.
    """

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        """Return the secret. The caller is responsible for it."""
        return self._value

    def __repr__(self) -> str:
        return "<secret>"

    __str__ = __repr__

    def __format__(self, _spec: str) -> str:
        return "<secret>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._value == self._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _memo: object) -> Secret:
        return self

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled: send the credential's name and resolve it on the other side")
