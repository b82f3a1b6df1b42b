"""An open-loop load generator: requests leave when they are due, whatever became of the ones before."""

from e2e.load.drive import drive
from e2e.load.measure import Measured, measure
from e2e.load.plan import LoadPlan
from e2e.load.result import Result, Status
from e2e.load.summary import Summary, summary

__all__ = ["LoadPlan", "Measured", "Result", "Status", "Summary", "drive", "measure", "summary"]
