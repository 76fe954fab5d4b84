"""A rate-limited provider to try things on: as pure rules, and over real HTTP on this machine."""

from .bound import Bound, lower_bound
from .forecast import Forecast, forecast
from .plan import KeyPlan, Latency, ProviderPlan, QuotaPlan, Scripted, equal_keys, organisations
from .rules import Admitted, Provider, Refused
from .running import Running, Simulator, in_process
from .tally import Statistics, Tally
from .virtual import Finished, VirtualRun, Work

__all__ = [
    "Admitted",
    "Bound",
    "Finished",
    "Forecast",
    "KeyPlan",
    "Latency",
    "Provider",
    "ProviderPlan",
    "QuotaPlan",
    "Refused",
    "Running",
    "Scripted",
    "Simulator",
    "Statistics",
    "Tally",
    "VirtualRun",
    "Work",
    "equal_keys",
    "forecast",
    "in_process",
    "lower_bound",
    "organisations",
]
