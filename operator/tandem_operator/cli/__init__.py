"""`tandem`, also as `kubectl tandem`: what a resource does and why, and what it would do under another load."""
