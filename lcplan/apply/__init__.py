"""Doing what a plan says: the executor walks its operations and decides nothing."""
