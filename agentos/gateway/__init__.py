"""A local HTTP proxy that leases a key of the pool for each request: any program, in any language.

``server.py`` has the ``Gateway``; ``exchange.py`` one request; ``routes.py``, ``admission.py``, ``tokens.py`` and
``headers.py`` decide what may pass; ``sessions.py`` where sessions stay; ``waiting/`` has how clients wait.
"""

from ..providers.wire_verdict import WireVerdict
from .records import GatewayRequest
from .server import Gateway
from .service import GatewaySettings

__all__ = ["Gateway", "GatewayRequest", "GatewaySettings", "WireVerdict"]
