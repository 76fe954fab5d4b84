"""Amazon Bedrock: per account, region and model. The code is in a header or the body; no delay is stated."""

from __future__ import annotations

from ..dialect import Dialect
from ..signal import Event

BEDROCK = Dialect(
    name="bedrock",
    hosts=("bedrock*.amazonaws.com",),
    marks=("x-amzn-bedrock-", "x-amzn-errortype"),
    windows={"requests": 60.0, "tokens": 60.0},
    codes={
        "throttlingexception": Event.LIMITED,
        "throttling": Event.LIMITED,
        "toomanyrequestsexception": Event.LIMITED,
        "servicequotaexceededexception": Event.LIMITED,
        "accessdeniedexception": Event.NOT_ENTITLED,
        "unrecognizedclientexception": Event.KEY_DEAD,
        "invalidclienttokenid": Event.KEY_DEAD,
        "expiredtokenexception": Event.KEY_DEAD,
        "invalidsignatureexception": Event.CALLER,  # usually a wrong clock
        "modelnotreadyexception": Event.BUSY,
        "modeltimeoutexception": Event.BUSY,
        "modelerrorexception": Event.BUSY,
        "modelstreamerrorexception": Event.BUSY,
        "serviceunavailableexception": Event.BUSY,
        "internalserverexception": Event.BUSY,
    },
    per_model=True,
)
