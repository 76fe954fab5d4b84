"""The table for unknown providers, and the codes and phrases common to all."""

from __future__ import annotations

from ..dialect import Dialect, phrase
from ..signal import Event

DEFAULT = Dialect(name="default", limits_with_403=True)

COMMON_CODES = {
    # money
    "insufficient_quota": Event.MONEY_GONE,
    "credit_balance_exhausted": Event.MONEY_GONE,
    "billing_hard_limit_reached": Event.MONEY_GONE,
    "billing_not_active": Event.MONEY_GONE,
    "billing_error": Event.MONEY_GONE,
    "enforced_spend_limit_reached": Event.MONEY_GONE,
    "insufficient_balance": Event.MONEY_GONE,
    "insufficient_credits": Event.MONEY_GONE,
    "payment_required": Event.MONEY_GONE,
    # keys and accounts
    "invalid_api_key": Event.KEY_DEAD,
    "api_key_invalid": Event.KEY_DEAD,
    "api_key_expired": Event.KEY_DEAD,
    "authentication_error": Event.KEY_DEAD,
    "account_deactivated": Event.KEY_DEAD,
    "account_suspended": Event.KEY_DEAD,
    "organization_deactivated": Event.KEY_DEAD,
    "token_revoked": Event.KEY_DEAD,
    "token_expired": Event.KEY_DEAD,
    "unauthenticated": Event.KEY_DEAD,
    # one model
    "model_not_found": Event.NOT_ENTITLED,
    "model_not_available": Event.NOT_ENTITLED,
    "model_decommissioned": Event.NOT_ENTITLED,
    "invalid_model": Event.NOT_ENTITLED,
    # too much for now
    "rate_limit_exceeded": Event.LIMITED,
    "rate_limit_error": Event.LIMITED,
    "rate_limited": Event.LIMITED,
    "ratelimitreached": Event.LIMITED,
    "ratelimitexceeded": Event.LIMITED,
    "rate_limit_reached": Event.LIMITED,
    "resource_exhausted": Event.LIMITED,
    "too_many_requests": Event.LIMITED,
    "toomanyrequests": Event.LIMITED,
    "quota-exceeded": Event.LIMITED,  # this and the next two: the problem types of the IETF draft
    "temporary-reduced-capacity": Event.BUSY,
    "abnormal-usage-detected": Event.RAMP,
    # too fast
    "slow_down": Event.RAMP,
    # never
    "request_too_large": Event.NEVER_FITS,
    # the provider itself
    "overloaded_error": Event.BUSY,
    "overloaded": Event.BUSY,
    "server_error": Event.BUSY,
    "internal_server_error": Event.BUSY,
    "internal_error": Event.BUSY,
    "api_error": Event.BUSY,
    "timeout_error": Event.BUSY,
    "unavailable": Event.BUSY,
    "service_unavailable": Event.BUSY,
    "engine_overloaded": Event.BUSY,
    "internal": Event.BUSY,
    "deadline_exceeded": Event.BUSY,
    # where the call comes from
    "ip_not_authorized": Event.NETWORK,
    "unsupported_country_region_territory": Event.NETWORK,
    # the request
    "context_length_exceeded": Event.CALLER,
    "content_filter": Event.CALLER,
    "content_policy_violation": Event.CALLER,
    # a header that one client sends with every key, and that does not match this key
    "mismatched_organization": Event.CALLER,
    "mismatched_project": Event.CALLER,
    "invalid_organization": Event.CALLER,
    "invalid_project": Event.CALLER,
}

# An error inside a 200 or a stream has no status of its own. If its code does not decide, it is treated like this
# status.
STATUS_BY_CODE = {
    "invalid_request_error": 400,
    "invalid_argument": 400,
    "failed_precondition": 400,
    "bad_request": 400,
    "unauthenticated": 401,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "permission_denied": 403,
    "not_found_error": 404,
    "not_found": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "rate_limited": 429,
    "resource_exhausted": 429,
    "insufficient_quota": 429,
    "api_error": 500,
    "server_error": 500,
    "internal": 500,
    "unavailable": 503,
    "deadline_exceeded": 504,
    "timeout_error": 504,
    "overloaded_error": 529,
}

_GONE = r"(?:invalid|not valid|incorrect|expired|revoked|disabled|deactivated|suspended|terminated|leaked)"

COMMON_PHRASES = (
    phrase(
        "no key was sent",
        Event.CALLER,
        r"(?:didn't|did not) provide an api key|missing api[ -]?key|x-api-key header is required|no auth credentials",
        400,
        401,
        403,
    ),
    phrase(
        "calls from this address are refused",
        Event.NETWORK,
        r"\bip (?:address )?(?:is )?not (?:authori[sz]ed|allowed)|user location is not supported"
        r"|country, region, or territory not supported|virtual network/firewall rules",
        400,
        401,
        403,
    ),
    phrase(
        "the key is refused",
        Event.KEY_DEAD,
        rf"\bapi[ -]?keys?\b[^.:]{{0,25}}\b{_GONE}\b|\b(?:invalid|incorrect|expired|revoked) api[ -]?key",
        400,
        403,
    ),
    phrase(
        "the account is closed",
        Event.KEY_DEAD,
        r"\b(?:account|organi[sz]ation|access token|oauth token|auth token)(?: \S{1,60})? "
        r"(?:is|was|has been|have been) (?:\w{1,20} )?(?:disabled|deactivated|suspended|terminated|revoked|expired)\b",
        400,
        403,
    ),
    phrase(
        "no money left",
        Event.MONEY_GONE,
        r"credit balance is too low|insufficient (?:account )?(?:balance|credits|funds)|used all available credits"
        r"|doesn't have any credits|monthly spending limit|specified api usage limits|\bspend limit",
        400,
        402,
        403,
        429,
    ),
    phrase(
        "the content is refused",
        Event.CALLER,
        r"\bflagged\b|\bmoderation\b|usage guidelines|usage polic|content polic",
        400,
        403,
    ),
    phrase("traffic grew too fast", Event.RAMP, r"\bacceleration\b|usage increase rate", 429, 503),
    phrase("overloaded", Event.BUSY, r"\boverloaded\b|rate-limited upstream|\bshared quota\b", 429),
)
