"""Assignment: one attempt of one item, as a value that is sent to a remote worker."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...pool.secret import Secret
from ..core.records import Attempt
from ..execution.attempt import PooledAttempt
from .pickled import PickledObject, pack
from .plain_values import to_plain

if TYPE_CHECKING:
    from ..execution.engine_run import EngineRun


class ShippedSecret(Secret):
    """A secret that is sent with its assignment, as the user requested. Unlike others it can be pickled."""

    __slots__ = ()

    def __reduce_ex__(self, _protocol: object) -> tuple[Any, ...]:  # type: ignore[override]
        return ShippedSecret, (self._value,)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Assignment:
    """One attempt, as the remote worker receives it. Its ``repr`` shows the item and the attempt only."""

    run_id: str
    item_id: str
    index: int  # its position in the input, from 0
    attempt: int  # 1 for the first
    token: int  # of the attempt: identifies its report
    payload: PickledObject  # the item, or the invocation of its command
    wants_context: bool
    credential: str | None = None  # its name
    secret: ShippedSecret | None = None  # None: resolved on the worker by the credential's name
    proof: bytes = b""  # of the secret; see ``compute_proof``
    nonce: bytes = b""  # of the run, for that proof
    lease: int | None = None  # the token of the item's lease; None without an agentos pool
    model: str | None = None  # for which the lease was requested
    checkpoint: str | None = None  # the item's own path on the driver's machine
    log_level: int = logging.WARNING  # below it, the driver would drop a line
    same_main: bool = False  # ``__main__`` is the same module on both sides
    scheduled: bool = False  # it passes a scheduler, which stores and shows it: it must not contain a secret
    driver: int = 0  # the driver's process id

    def __repr__(self) -> str:
        return f"<assignment {self.item_id} attempt {self.attempt}>"


def compute_proof(secret: str, nonce: bytes) -> bytes:
    """Return a keyed digest by which both sides compare their secrets without revealing them."""
    return hmac.digest(nonce, secret.encode(), hashlib.sha256)


class AssignmentBuilder:
    """Builds the assignments of one run.

    With *ship_secrets* they contain the secrets; else the workers resolve them by name. *same_main*: see
    ``pickled.pack``. *scheduled*: they pass a scheduler, so they never contain a secret.
    """

    def __init__(self, run: EngineRun, *, ship_secrets: bool, same_main: bool = False, scheduled: bool = False) -> None:
        self._run = run
        self._ships_secrets = ship_secrets and not scheduled
        self._same_main = same_main
        self._scheduled = scheduled
        self._nonce = secrets.token_bytes(16)
        self.run_id = secrets.token_hex(8)
        self._log_level = logging.getLogger("agentos.worker").getEffectiveLevel()

    def build(self, attempt: Attempt, payload: PickledObject | None = None) -> Assignment:
        """Build the assignment for *attempt*, with *payload* in place of its item, if given.

        Raises ``NotPicklable`` if the item must be pickled and cannot be.
        """
        run, item, grant = self._run, attempt.item, attempt.grant
        worker = run.worker
        name = secret = checkpoint = lease = model = None
        proof = b""
        if grant is not None:
            name = to_plain(grant.key.name)
            value = run.secret_for(attempt) or ""
            if self._ships_secrets:
                secret = ShippedSecret(value)
            else:
                proof = compute_proof(value, self._nonce)
            if isinstance(attempt, PooledAttempt):
                lease, model = grant.token, to_plain(grant.model)
        if worker.wants_context:
            checkpoint = str(run.folder.path_for(item.id))
        return Assignment(
            run_id=self.run_id,
            item_id=item.id,
            index=item.index,
            attempt=attempt.number,
            token=attempt.token,
            payload=payload or pack(item.payload, "the item", same_main=self._same_main),
            wants_context=worker.wants_context,
            credential=name,
            secret=secret,
            proof=proof,
            nonce=self._nonce,
            lease=lease,
            model=model,
            checkpoint=checkpoint,
            log_level=self._log_level,
            same_main=self._same_main,
            scheduled=self._scheduled,
            driver=os.getpid(),
        )
