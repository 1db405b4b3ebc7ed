"""The protocols that compare, by name."""

from __future__ import annotations

from typing import Literal

from autorep.mpc.compare_bits import BitSigns
from autorep.mpc.compare_dcf import DcfSigns
from autorep.mpc.compare_short import ShortSigns
from autorep.mpc.signs import SignProtocol

ComparisonName = Literal["dcf", "short", "bits"]
COMPARISONS: dict[str, type[SignProtocol]] = {"dcf": DcfSigns, "short": ShortSigns, "bits": BitSigns}
