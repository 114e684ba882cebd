"""What FOCUS charges are about: GPU time and energy, which have a price, and counts of inference servers."""

from __future__ import annotations

from typing import NamedTuple

from gpuledger.ledger.report.charges import MICROSECONDS_PER_HOUR
from gpuledger.ledger.report.settings import MILLIJOULES_PER_KWH


class Service(NamedTuple):
    """What kind of service a Sku is, in the words of FOCUS, and on what resource."""

    name: str
    category: str
    subcategory: str
    resource: str


_GPU = Service("GPU", "Compute", "Other (Compute)", "GPU")
_INFERENCE = Service("Inference", "AI and Machine Learning", "Generative AI", "Inference Server")


class Sku(NamedTuple):
    """What is sold. `size` is the number of exact units (microseconds, millijoules) in a priced one.

    `singular` names one unit; `details` are properties that FOCUS defines, of one unit, and others with `x_`.
    """

    name: str
    unit: str
    singular: str
    size: int
    meter: str
    details: tuple[tuple[str, object], ...] = ()
    service: Service = _GPU


GPU_TIME = Sku("gpu-time", "GPU-Hours", "GPU-Hour", MICROSECONDS_PER_HOUR, "GPU time", (("GpuCount", 1),))
ENERGY = Sku("gpu-energy", "kWh", "kWh", MILLIJOULES_PER_KWH, "Energy")


def _tokens(name: str, meter: str, **details: str) -> Sku:
    properties = tuple((f"x_Token{key}", value) for key, value in details.items())
    return Sku(name, "Tokens", "Token", 1, meter, properties, _INFERENCE)


# Properties have the names of a draft of FOCUS 1.5, with the prefix for what FOCUS does not define yet.
INPUT_TOKENS = _tokens("tokens-input", "Input tokens", Direction="Input")
CACHED_TOKENS = _tokens("tokens-input-cached", "Cached input tokens", Direction="Input", CacheAction="Read")
OUTPUT_TOKENS = _tokens("tokens-output", "Output tokens", Direction="Output")
REQUESTS = Sku("requests", "Requests", "Request", 1, "Finished requests", (), _INFERENCE)
