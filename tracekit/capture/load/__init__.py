"""The load that a capture drives, and what its clients saw: `phases` is the way in."""
