"""The commands by name. Importing this stays cheap: `specqd --help` does not load the core."""

import click

from specqd import __version__
from specqd.cli.batch import batch
from specqd.cli.bench import bench
from specqd.cli.chat import chat
from specqd.cli.command import Group
from specqd.cli.demo import demo
from specqd.cli.generate import generate
from specqd.cli.inspect import inspect
from specqd.cli.models import models, pull, rm
from specqd.cli.pack import pack
from specqd.cli.serve import serve

_EPILOG = """\b
Try:
  specqd demo
  specqd chat smollm2:135m "Why is the sky blue?"
  specqd chat qwen3:0.6b
  specqd generate ./my-model -p "Once upon a time" -n 200 --temperature 0.8
  specqd models
  specqd serve --port 8000
  specqd batch requests.jsonl -o answers.jsonl
  specqd inspect qwen3:0.6b
  specqd pack qwen3:0.6b ./qwen3-packed
"""


@click.group(cls=Group, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="specqd %(version)s")
def app() -> None:
    """Fast, exact text generation from BF16 language models on CPUs.

    MODEL is a directory, a .gguf file, owner/name[@revision] on Hugging Face or a short name such
    as qwen3:0.6b, which `specqd models` lists. Default: the 28 M model for Python source that ships
    with the package.

    Options have defaults in ~/.config/specqd/config.toml and in SPECQD_* variables.
    """


_COMMANDS = (generate, chat, serve, batch, demo, models, pull, rm, inspect, pack, bench)
for _command in _COMMANDS:
    app.add_command(_command)
