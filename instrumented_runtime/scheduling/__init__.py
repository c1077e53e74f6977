"""What the host decides before a step: whom to admit or hold back, and which tokens to compute."""
