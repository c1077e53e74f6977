"""Idle time of devices cut into pieces with one cause each: what several analyses build on."""
