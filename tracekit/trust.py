"""Trust marks: what makes a figure of a report less sure than it looks."""
