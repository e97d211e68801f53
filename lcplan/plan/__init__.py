"""Desired against recorded and observed: a Plan of operations with a cause each. Pure: no clock, network or files."""
