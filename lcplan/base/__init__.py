"""Words every other package uses: diagnostics, sizes, layouts, canonical JSON, atomic files. Imports nothing of lcplan."""
