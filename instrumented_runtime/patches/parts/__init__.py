"""What patches are made of: reading a version's source, changing it, and larger changes."""
