"""Other planners, written from their published formulas, as pure policies: `policy(observed, now) -> Decision`.

They exist to be compared with `plan.decide` under the same simulator, limits and metrics. Each file cites its source.
What a planner profiles offline is given to it as a `Profile`, measured on the simulator's truth: perfect knowledge.
"""
