"""The peers' figures: the same trace, measured by the definitions of another tool, so that numbers can be compared.

Each Result says in a note why ours differ.
"""

from __future__ import annotations

from rankscope.analysis.compat.hta import breakdown as hta_breakdown
from rankscope.analysis.compat.nsys.reports import NSYS_REPORTS
from rankscope.analysis.compat.tracelens import breakdown as tracelens_breakdown
from rankscope.analysis.core.report import Report

__all__ = ["COMPAT"]

COMPAT: dict[str, dict[str, Report]] = {
    "hta": {"breakdown": Report("breakdown", "HTA's temporal breakdown and overlap.", hta_breakdown)},
    "tracelens": {"breakdown": Report("breakdown", "TraceLens's GPU timeline.", tracelens_breakdown)},
    "nsys": NSYS_REPORTS,
}
