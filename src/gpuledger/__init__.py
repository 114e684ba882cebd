"""Who used this GPU, for how long, and what it cost, in books that balance."""

__version__ = "0.2.0"
