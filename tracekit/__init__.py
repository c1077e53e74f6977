"""tracekit: where does the GPU's time go, and why?"""

__version__ = "0.1.0"
