"""AMD serving work as running, instrumented code: the truth that tracekit is checked against."""
