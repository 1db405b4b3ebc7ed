"""Mutations of the sources that leave answers right and break a promise; each must be caught by a named test."""
