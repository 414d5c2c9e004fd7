"""Several machines: a Ray Serve application of the server, and answers to documents by Ray Data.

Needs the extra `specqd[ray]`. Only `specqd batch --ray` imports it; nothing else knows Ray.
"""

from specqd.ray.documents import batch
from specqd.ray.serving import app

__all__ = ["app", "batch"]
