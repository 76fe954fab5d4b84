"""Azure OpenAI: the deployment is the quota. ``-1`` and a reset of ``0`` mean "unknown".

Requests are counted over periods of 1 or 10 seconds, so a 429 may come while the minute's count has room: then only
``retry-after`` is a reason to wait, not the readings.
"""

from __future__ import annotations

from ..dialect import Dialect
from ..signal import Event

AZURE = Dialect(
    name="azure",
    hosts=("*.openai.azure.com", "*.cognitiveservices.azure.com", "*.services.ai.azure.com"),
    marks=("apim-request-id", "azureml-", "x-ms-deployment-name", "x-ms-retry-after-ms", "x-ms-region"),
    windows={"requests": 60.0, "tokens": 60.0},
    zero_reset_is_unknown=True,
    codes={"deploymentnotfound": Event.NOT_ENTITLED, "nocapacity": Event.BUSY},
    per_model=True,
)
