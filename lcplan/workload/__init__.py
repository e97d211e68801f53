"""The measurements and their client. A leaf: knows engines and records, nothing of plans."""
