"""AMD serving work as running, instrumented code: the known truth that tracekit is checked against."""
