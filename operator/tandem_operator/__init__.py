"""Tandem's control plane: the operator, its planner, its simulator and its command line. No torch in here."""
