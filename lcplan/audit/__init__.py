"""Questions to the records: verify, why, doc, coverage, diff, compare; bundles, exports and adopted runs."""
