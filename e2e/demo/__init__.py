"""`make demo`: the whole story on one machine; the exit code is 0 only if all of it was true."""
