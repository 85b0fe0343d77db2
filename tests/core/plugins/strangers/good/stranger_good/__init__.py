"""A distribution of plugins as a stranger would ship it."""
