"""A diagnosis out of findings and facts."""
