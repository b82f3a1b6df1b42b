"""A discrete-event simulator that drives the same planner over traces and made-up loads."""
