"""Data sets by name: a module for each or for a few, with the record of its files beside the function."""
