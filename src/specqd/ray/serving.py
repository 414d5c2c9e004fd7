"""Builds the application: fronts check and route requests, replicas answer them."""

import os
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import RequestRouterConfig
from ray.serve.schema import LoggingConfig

from specqd.errors import RequestError
from specqd.ray.front import Front
from specqd.ray.options import Options, absolute
from specqd.ray.replica import Replica
from specqd.ray.routing import PrefixRouter
from specqd.server.guard import Access
from specqd.server.opening import DRAIN_SECONDS

_FRONT_REQUESTS = 1024  # open at once on a front, like the samples on one server
_HEALTH_SECONDS = 5  # between two checks of a replica


def app(arguments: dict[str, Any]) -> serve.Application:
    """Returns the application for `serve run specqd.ray:app model=./my-model replicas=2`.

    It is one OpenAI endpoint for all replicas of a model. `Options` lists the arguments. Without
    `api_keys`, the keys are those in SPECQD_API_KEY, as for `specqd serve`. Raises RequestError.
    """
    options = Options.of(arguments)
    if not options.api_keys:
        options = Options.of(
            {**arguments, "api_keys": os.environ.get("SPECQD_API_KEY", "").split()}
        )
    if not all(key.isascii() and key.isprintable() for key in options.api_keys):
        raise RequestError("api_keys: HTTP headers can carry only printable ASCII; change the keys")
    replicas = _replicas(options).bind(
        replace(options, small=absolute(options.small) or options.small),
        absolute(options.model),
        tuple(absolute(word) or word for word in options.draft),
    )
    names = frozenset(name.lower() for name in options.allow_host)
    access = Access(api_keys=options.api_keys, host_names=names)
    fronts = serve.deployment(serve.ingress()(Front)).options(
        name="front",
        num_replicas=options.fronts,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=_FRONT_REQUESTS,
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        logging_config=LoggingConfig(enable_access_log=False),
    )
    application: serve.Application = fronts.bind(replicas, access)
    return application


def _replicas(options: Options) -> serve.Deployment:
    number: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas is not None:
        number = {
            "autoscaling_config": {
                "min_replicas": options.replicas,
                "max_replicas": options.max_replicas,
                "target_ongoing_requests": options.most_ongoing,
                "downscale_delay_s": options.idle_seconds,
            }
        }
    if options.routing == "prefix":
        number["request_router_config"] = RequestRouterConfig(request_router_class=PrefixRouter)
    return serve.deployment(Replica).options(
        name="replica",
        ray_actor_options={"num_cpus": options.cores},
        max_ongoing_requests=4 * options.most_ongoing,  # the batch and a queue
        graceful_shutdown_timeout_s=DRAIN_SECONDS,
        logging_config=LoggingConfig(enable_access_log=False),
        health_check_period_s=_HEALTH_SECONDS,
        **number,
    )
