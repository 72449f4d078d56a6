"""sparsekit: build, verify, run and inspect sparse-attention GPU kernels, ahead of time."""

__version__ = "0.1.0"
