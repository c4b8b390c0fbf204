"""What is wrong in a run: what would save time if it were as its peers are (docs/definitions.md, "Faults")."""

from rankscope.analysis.faults.faults import Fault as Fault
from rankscope.analysis.faults.faults import Faults as Faults
from rankscope.analysis.faults.faults import faults_of as faults_of
