"""The running operator: watch, observe, plan, carry out, write status."""
