"""The credentials of a pool by name and by secret, and the hosts that each may be sent to."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import PoolClosed
from ...providers.signal import GENERIC_PROVIDERS
from ..allowed_hosts import AllowedHosts, AnsweredBy, Origin, detect_provider, is_sendable, parse_base_origin
from ..core.records import NO_LABELS, Key, KeySpec, Labels, Ticket
from ..credential import Credential
from ..provider_groups import label_provider, select_provider
from ..redaction import Masker
from ..secret import Secret
from .scheduler import Scheduler, log

_MOST_NAMED = 3


class CredentialRegistry:
    """Admits credentials to the pool and finds them by name or secret. It only grows."""

    def __init__(self, scheduler: Scheduler, masker: Masker) -> None:
        self._scheduler = scheduler
        self._core = scheduler.core
        self._masker = masker
        self.credentials: dict[str, Credential] = {}
        self.names: dict[str, str] = {}  # secret -> name
        self._destinations = AllowedHosts()

    def admit_all(self, given: Sequence[str | Credential]) -> None:
        """Admit the initial credentials of the pool."""
        taken = {c.name for c in given if isinstance(c, Credential) and c.name is not None}
        admitted = [self._admit(credential, taken, f"credentials[{index}]") for index, credential in enumerate(given)]
        _warn_of_short_secrets([name for name, can_be_masked in admitted if not can_be_masked])

    def admit(self, given: str | Credential) -> str:
        """Admit a credential, also while requests wait. Return its name."""
        name, can_be_masked = self._admit(given, set(self.credentials), "credential")
        if not can_be_masked:
            _warn_of_short_secrets([name])
        return name

    def slots(self) -> int:
        """Count the certain slots: a credential with adaptive slots has one."""
        return sum(1 if known.slots == "auto" else known.slots for known in self.credentials.values())

    def _admit(self, given: str | Credential, taken: set[str], argument: str) -> tuple[str, bool]:
        """Admit a credential. Return its name, and True if its secret is long enough to be masked."""
        credential = _as_credential(given, argument)
        secret = credential.secret.reveal()
        name = ""

        def admit(now: float) -> Sequence[Ticket]:
            nonlocal name
            if self._core.closed:
                raise PoolClosed
            self._scheduler.check_wall_clock()  # it may be the first with a daily limit
            if secret in self.names:
                raise ValueError(f"{argument}: this secret is already in the pool as {self.names[secret]}")
            name = credential.name if credential.name is not None else self._default_name(taken)
            if name in self.credentials:
                raise ValueError(f"{argument}: the name {name!r} is taken; each credential needs its own")
            self._check_quota(credential, argument)
            auto = credential.slots == "auto"
            slots = 1 if credential.slots == "auto" else credential.slots
            labels = credential.labels | self._destinations.find_labels(credential) | label_provider(credential)
            spec = KeySpec(name, slots, credential.quota, credential.limits, labels, auto)
            self.credentials[name] = credential
            try:
                touched = self._core.add(spec, now)
            except BaseException:
                del self.credentials[name]
                raise
            self.names[secret] = name
            return touched

        can_be_masked = self._masker.add(secret)  # first: a waiter may get it as soon as it is in the pool
        self._scheduler.run_step(admit)
        return name, can_be_masked

    def _default_name(self, taken: set[str]) -> str:
        number = len(self.credentials) + 1
        while f"key-{number}" in self.credentials or f"key-{number}" in taken:
            number += 1
        return f"key-{number}"

    def _check_quota(self, credential: Credential, argument: str) -> None:
        quota = self._core.quotas.get((True, credential.quota or ""))
        if quota is not None and {state.limit for state in quota.stated} != set(credential.limits):
            raise ValueError(
                f"{argument}: limits differ from those of {quota.keys[0].name}, which shares the quota "
                f"{credential.quota!r}; limits belong to the quota, so state the same for both"
            )

    # -- lookup -----------------------------------------------------------------------------------------------

    def credential_count(self) -> int:
        """Return the number of credentials; it only grows."""
        return len(self.credentials)

    def unsendable(self) -> list[str]:
        """Return the names of credentials whose secret no header can carry."""
        return [name for name, credential in self.credentials.items() if not is_sendable(credential)]

    def find_labels(self, place: Origin) -> Labels:
        """Return the labels that a credential needs to serve *place*. Raises ForeignHost if none may."""
        with self._scheduler.locked():
            names = self._destinations.find_serving(place, self.credentials)
            if len(names) == len(self.credentials):
                return NO_LABELS
            label = self._destinations.get_label(place)
            for name in names:
                self._core.keys[name].labels |= {label}  # no index has this label yet, or the key already has it
            return frozenset((label,))

    def find_quota(self, name: str) -> str:
        """Return the quota of the credential of that name."""
        return self.key(name).quota.name

    def find_quota_labels(self, quota: str) -> Labels:
        """Return the labels that only the credentials of *quota* have."""
        label = ("agentos-quota", quota)
        with self._scheduler.locked():
            for key in self._core.keys.values():
                if key.quota.name == quota:
                    key.labels |= {label}  # no index has this label yet, or the key already has it
        return frozenset((label,))

    def select_provider(self, provider: str | None) -> Labels:
        """Return the labels of the credentials that serve a run. Raises ValueError if the choice is open."""
        with self._scheduler.locked():
            return select_provider(self.credentials, provider)

    def find_base_urls(self, place: Origin) -> tuple[str, ...]:
        """Return the base URLs of credentials that lead to *place*."""
        with self._scheduler.locked():
            return self._destinations.find_base_urls(place, self.credentials)

    def find_answerer(self, key: Key, origin: str) -> tuple[AnsweredBy, str]:
        """Return who answered at *origin* to a call with *key*; if it was another provider, also both in words."""
        credential = self.credentials[key.name]
        place = parse_base_origin(origin)
        learned = None if key.quota.provider in GENERIC_PROVIDERS else key.quota.provider
        found = self._destinations.find_answerer(credential, place, learned, self.credentials)
        if found is not AnsweredBy.OTHER:
            return found, ""
        owner, there = detect_provider(credential), place.provider
        return found, (
            f"{place.host} is a host of {there}, and {key.name} is a key of {owner}; choose keys of {there} with "
            f'--provider {there}, from Python provider="{there}"'
        )

    def get_secret(self, name: str) -> Secret:
        """Return the secret of a credential in its holder object."""
        return self.credentials[name].secret

    def get_credential(self, name: str) -> Credential:
        """Return the credential of that name."""
        self.key(name)
        return self.credentials[name]

    def key(self, name: str) -> Key:
        """Return the core's key of that name. Raises ValueError."""
        key = self._core.keys.get(name)
        if key is None:
            known = ", ".join(list(self._core.keys)[:10])
            raise ValueError(f"name: no credential of that name in this pool; it has {known or 'none'}")
        return key


def _warn_of_short_secrets(names: Sequence[str]) -> None:
    """Log one line, however many there are."""
    if len(names) == 1:
        log.warning("[COORDINATOR] the secret of %s is shorter than 8 characters: too short to be masked", names[0])
    elif names:
        log.warning(
            "[COORDINATOR] the secrets of %d credentials are shorter than 8 characters: too short to be masked (%s%s)",
            len(names),
            ", ".join(names[:_MOST_NAMED]),
            ", ..." if len(names) > _MOST_NAMED else "",
        )


def _as_credential(given: str | Credential, argument: str) -> Credential:
    if isinstance(given, Credential):
        return given
    try:
        return Credential(given)
    except ValueError as error:
        raise ValueError(f"{argument}: {error}") from None
