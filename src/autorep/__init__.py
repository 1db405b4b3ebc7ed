"""AutoReP: replace ReLUs automatically, then run the network privately between two servers."""

__version__ = "0.1.0"
