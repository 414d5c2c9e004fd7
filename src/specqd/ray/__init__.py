"""Runs on several machines: the server as a Ray Serve application, and batches with Ray Data.

Needs the extra `ray`. Only `specqd batch --ray` imports this package; nothing else knows
Ray.
"""

from specqd.ray.documents import batch
from specqd.ray.serving import app

__all__ = ["app", "batch"]
