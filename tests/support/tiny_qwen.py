"""Complete model folders of a few kilobytes that have Qwen's markers, and no weights in them.

Their tokenizer has one token for each byte. Their templates are short ones of our own that write
turns as those of Qwen's generations do.
"""

import json
from pathlib import Path
from typing import Any, Literal

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.safetensors_file import write_float32

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = (
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)

_HIDDEN, _LAYERS = 32, 2

Generation = Literal["qwen2.5", "qwen3", "qwen3-thinking", "qwen3-coder", "qwen3.5", "qwen3.8"]

_JSON_CALL = (
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>"
)
_XML_CALL = (
    "<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for name, value in call.function.arguments | items %}"
    "<parameter={{ name }}>\n{{ value if value is string else (VALUE) }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>"
)
_TEMPLATE = """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}
    {%- if message.role == 'system' and not loop.first and FIRST_SYSTEM_ONLY %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- endif %}
{%- endfor %}
{%- if ns.last < 0 and FIRST_SYSTEM_ONLY %}{{ raise_exception('No question.') }}{% endif %}
{%- set system = messages[0].content if messages[0].role == 'system' else DEFAULT_SYSTEM %}
{%- if reasoning_effort | default('low') not in EFFORTS %}{{ raise_exception('No.') }}{% endif %}
{%- set effort = EFFORT %}
{%- if system or tools or effort %}
    {{- '<|im_start|>system\n' + effort + system }}
    {%- if tools %}
        {{- '\n\nTools:\n' }}
        {%- for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}
        {{- 'Write <tool_call> and </tool_call> around calls.' }}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + CONTENT + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- set reasoning = message.reasoning_content | default('') %}
        {%- if (KEEPS_ALL or loop.index0 > ns.last) and (reasoning or MARKS_NONE) and THINKS %}
            {{- '<think>\n' + reasoning + '\n</think>\n\n' }}
        {%- endif %}
        {{- CONTENT }}
        {%- for call in message.tool_calls or [] %}
            {{- (TEXT_END if CONTENT else '') if loop.first else '\n' }}
            {#- -#} CALL
        {%- endfor %}
        {{- '<|im_end|>\n' }}
    {%- elif message.role == 'tool' %}
        {{- '' if loop.previtem.role == 'tool' else '<|im_start|>user' + RESULT_START }}
        {{- '<tool_response>\n' + CONTENT + '\n</tool_response>' }}
        {{- RESULT_END if loop.nextitem is defined and loop.nextitem.role == 'tool' else LAST_END }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' + (OPENS) }}{% endif %}"""

_EFFORTS = "('low', 'medium', 'xhigh')"
_EFFORT = (
    "'' if enable_thinking is defined and not enable_thinking else"
    " {'low': 'Think little.\n\n', 'medium': '', 'xhigh': 'Think much.\n\n'}"
    ".get(reasoning_effort | default('xhigh')) or ''"
)
_OPENS_OFF = "'<think>\n\n</think>\n\n' if enable_thinking is defined and not enable_thinking else "
# In this order, since calls have values.
_COMMON = {
    "CONTENT": "message.content",
    "CALL": _JSON_CALL,
    "VALUE": "value | tojson",
    "FIRST_SYSTEM_ONLY": "false",
    "DEFAULT_SYSTEM": "''",
    "EFFORTS": "[reasoning_effort | default('low')]",
    "EFFORT": "''",
    "KEEPS_ALL": "false",
    "MARKS_NONE": "false",
    "THINKS": "true",
    "TEXT_END": r"'\n'",
    "RESULT_START": r"'\n'",
    "RESULT_END": r"'\n'",
    "LAST_END": r"'<|im_end|>\n'",
    "OPENS": "''",
}
_XML: dict[str, str] = {
    "CONTENT": "(message.content | trim)",
    "CALL": _XML_CALL,
    "TEXT_END": r"'\n\n'",
    "FIRST_SYSTEM_ONLY": "true",
    "MARKS_NONE": "true",
    "OPENS": _OPENS_OFF + r"'<think>\n'",
}
_GENERATIONS: dict[str, dict[str, str]] = {
    "qwen2.5": {"THINKS": "false", "DEFAULT_SYSTEM": "'You are tiny.'"},
    "qwen3": {"OPENS": _OPENS_OFF + "''"},
    "qwen3-thinking": {"OPENS": r"'<think>\n'"},
    "qwen3-coder": {
        "CALL": _XML_CALL,
        "THINKS": "false",
        "TEXT_END": r"'\n\n'",
        "VALUE": "value | tojson if value is mapping or value is sequence else value | string",
        "LAST_END": r"'\n<|im_end|>\n'",
    },
    "qwen3.5": _XML | {"KEEPS_ALL": "preserve_thinking is defined"},
    "qwen3.8": _XML | {"KEEPS_ALL": "true", "EFFORTS": _EFFORTS, "EFFORT": _EFFORT},
}


def template_of(generation: Generation) -> str:
    template = _TEMPLATE
    for name, value in (_COMMON | _GENERATIONS[generation]).items():
        template = template.replace(name, value)
    return template


def write_tiny_qwen(folder: Path, generation: Generation) -> Path:
    folder.mkdir(parents=True)
    tokenizer = _byte_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|im_end|>")
    vocabulary = tokenizer.get_vocab_size()
    config: dict[str, Any] = {
        "model_type": "qwen3",
        "hidden_size": _HIDDEN,
        "intermediate_size": 2 * _HIDDEN,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": _HIDDEN // 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "max_position_embeddings": 8192,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "eos_token_id": end,
    }
    tokenizer_config = {"chat_template": template_of(generation), "eos_token": "<|im_end|>"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [end]}))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    write_float32(folder / "model.safetensors", {}, [])
    return folder


def _byte_tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={each: i for i, each in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in SPECIAL])
    tokenizer.add_tokens([AddedToken(each, special=False, normalized=False) for each in ADDED])
    return tokenizer
