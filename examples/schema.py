"""Text that follows a Pydantic model. Needs the extra `structured`."""

from typing import Literal

from pydantic import BaseModel

from specqd import LLM, SamplingParams


class Import(BaseModel, extra="forbid"):  # no other fields
    module: Literal["os", "re", "sys"]
    is_used: bool


llm = LLM()
params = SamplingParams(max_tokens=150, schema=Import)
text = llm.generate("import re\n\nre.match('a', 'b')\n# As JSON: ", params)[0].text
print(Import.model_validate_json(text))
plain = llm.with_draft("none").generate("import re\n\nre.match('a', 'b')\n# As JSON: ", params)[0]
print("equal to plain decoding:", text == plain.text)
