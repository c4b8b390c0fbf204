"""Reports that reproduce the numbers of other tools (HTA, TraceLens, nsys) by their definitions.

A note explains why rankscope's own numbers differ. Imports core.
"""

from __future__ import annotations

from rankscope.analysis.compat.breakdowns import hta_breakdown, tracelens_breakdown
from rankscope.analysis.compat.nsys import NSYS_REPORTS
from rankscope.analysis.core.report import Report

__all__ = ["COMPAT"]

COMPAT: dict[str, dict[str, Report]] = {
    "hta": {"breakdown": Report("breakdown", "The temporal breakdown and overlap of HTA.", hta_breakdown)},
    "tracelens": {"breakdown": Report("breakdown", "The GPU timeline of TraceLens.", tracelens_breakdown)},
    "nsys": NSYS_REPORTS,
}
