"""Measurements that users run: kernels, chains of levels, the best drafts."""
