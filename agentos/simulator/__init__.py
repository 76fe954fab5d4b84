"""A simulated rate-limited provider: as pure rules, and over real HTTP on this machine."""

from .lower_bound import Bound, lower_bound
from .plan import KeyPlan, Latency, ProviderPlan, QuotaPlan, Scripted, equal_keys, organisations, simulated_key
from .pool_forecast import Forecast, forecast
from .rules import Admitted, Provider, Refused
from .runner import Running, Simulator, in_process
from .statistics import Statistics, Tally
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
    "simulated_key",
]
