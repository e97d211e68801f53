"""What `lcplan validate` says of a valid recipe."""

from __future__ import annotations

from lcplan.plan.model import Plan


def validated(plan: Plan) -> dict[str, int]:
    """Return counts of launches and cells."""
    return {"launches": len(plan.launches), "cells": len(plan.cells)}
