"""What the user declares: loading YAML with positions, its schema, and expansion into cells and launches."""
