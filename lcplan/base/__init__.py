"""Words every other package uses: diagnostics, sizes, layouts, selectors, canonical JSON, atomic files."""
