"""The report: one static HTML page for a campaign, every figure of which leads to its run and cmd.sh."""
