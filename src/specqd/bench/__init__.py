"""Measurements for users: kernels, chains of draft levels, and the fastest chain."""
