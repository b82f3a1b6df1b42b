"""Pure decisions: observed facts and `now` in, a decision with its reason out. No clock, no I/O, no randomness."""
