"""The commands by name. Importing this stays cheap: `specqd --help` does not load the core."""

import click

from specqd import __version__
from specqd.cli.batch import batch
from specqd.cli.bench import bench
from specqd.cli.chat import chat
from specqd.cli.demo import demo
from specqd.cli.generate import generate
from specqd.cli.inspect import inspect
from specqd.cli.pack import pack
from specqd.cli.serve import serve

_EPILOG = """\b
Try:
  specqd demo
  specqd generate -p "def fibonacci(n):"
  specqd generate ./my-model -p "Once upon a time" -n 200 --temperature 0.8
  specqd chat Qwen/Qwen3-0.6B
  specqd serve --port 8000
  specqd batch requests.jsonl -o answers.jsonl
  specqd inspect Qwen/Qwen3-0.6B
  specqd pack Qwen/Qwen3-0.6B ./qwen3-packed
"""


@click.group(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="specqd %(version)s")
def app() -> None:
    """Fast, exact text generation from BF16 language models on CPUs.

    MODEL is a Hugging Face directory, a GGUF file or a Hub repository, owner/name[@revision].
    Default: the 28 M model for Python source that ships with the package.
    """


for _command in (generate, chat, serve, batch, demo, inspect, pack, bench):
    app.add_command(_command)
