"""Hostile files for every reader: what they are made of, who reads them, and what may come of it."""
