"""The front door: the pool of credentials, and (to come) the run of many items on it."""

from .credential_coordinator import CredentialCoordinator, CredentialState, Explanation

__all__ = ["CredentialCoordinator", "CredentialState", "Explanation"]
