"""What is kept: state, lock, manifests, ledger, recipe texts, numbers. A leaf that knows only lcplan.base.

`root` is the state folder everywhere (by default `./state`).
"""
