"""Credentials and their pool: which key may be used, and when."""

from ..errors import NeverFits, NoCredentialAvailable, NoUsableCredential, PoolClosed, WouldBlockLoop
from ..util.clock import Clock, SystemClock
from .credential import Credential
from .lease import Lease
from .limit import Limit
from .secret import Secret

__all__ = [
    "Clock",
    "Credential",
    "Lease",
    "Limit",
    "NeverFits",
    "NoCredentialAvailable",
    "NoUsableCredential",
    "PoolClosed",
    "Secret",
    "SystemClock",
    "WouldBlockLoop",
]
