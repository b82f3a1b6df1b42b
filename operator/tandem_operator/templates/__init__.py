"""The shapes of child objects: Jinja2 templates, and the few pure functions that fill them."""
