"""A complete model folder of a few kilobytes: Muse Glimmer's architecture and markers, and no
weights in it (`random_weights` writes some).

Its tokenizer has one token for each byte. Its template is a short one of our own that writes the
messages that the model's writes.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from models.safetensors_file import write_float32

MARKERS = (
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eom|>",
    "<|eot|>",
    "<|start|>",
    "<|message|>",
    "<|image_start|>",
    "<|image_end|>",
    "<|patch|>",
)
TEMPLATE = """
{%- macro after_system() -%}
    {{- '\n\nReasoning strength: ' + (reasoning_strength or 'high') + '.' -}}
    {%- if tools -%}
        {{- '\n\nCall a tool with <atem:function_calls>.\n// Function schemas' -}}
        {%- for tool in tools -%}
            {{- '\n{"name": ' + tool.function.name | tojson + ', "description": ' -}}
            {{- tool.function.description | tojson + ', "parameters": ' -}}
            {{- tool.function.parameters | tojson + '}' -}}
        {%- endfor -%}
    {%- endif -%}
    {{- '\n\n# Valid recipients: "self"' -}}
    {%- for tool in tools or [] -%}{{- ', "' + tool.function.name + '.*"' -}}{%- endfor -%}
    {{- ', "user".<|eot|>' -}}
{%- endmacro -%}
{%- macro parameter(it) -%}
    {%- if it is boolean or it is none or it is mapping or (it is iterable and it is not string) -%}
        {{- it | tojson -}}
    {%- else -%}{{- it -}}
    {%- endif -%}
{%- endmacro -%}
{{- bos_token -}}
{%- if messages[0].role != 'system' -%}
    {{- '<|start|>system<|message|>You are a helpful AI assistant.' + after_system() -}}
{%- endif -%}
{%- for m in messages -%}
    {%- if m.role == 'system' -%}
        {{- '<|start|>system<|message|>' + m.content + after_system() -}}
    {%- elif m.role == 'user' -%}
        {{- '<|start|>user<|message|>' + m.content + '<|eot|>' -}}
    {%- elif m.role == 'tool' -%}
        {{- '<|start|>tool ' + m.name + '<|message|><tool_output name="' + m.name + '">\n' -}}
        {{- m.content + '\n</tool_output><|eot|>' -}}
    {%- else -%}
        {%- if m.reasoning_content -%}
            {{- '<|start|>assistant to=self<|message|>' + m.reasoning_content + '<|eom|>' -}}
        {%- endif -%}
        {%- for call in m.tool_calls or [] -%}
            {{- '<|start|>assistant to=' + call.function.name + '<|message|>' -}}
            {{- '<atem:function_calls>\n<atem:invoke name="' + call.function.name + '">\n' -}}
            {%- for name, it in call.function.arguments.items() -%}
                {{- '<atem:parameter name="' + name + '">' + parameter(it) -}}
                {{- '</atem:parameter>\n' -}}
            {%- endfor -%}
            {{- '</atem:invoke>\n</atem:function_calls>' -}}
            {{- '<|eot|>' if loop.last else '<|eom|>' -}}
        {%- else -%}
            {{- '<|start|>assistant to=user<|message|>' + m.content + '<|eot|>' -}}
        {%- endfor -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}
"""


def write_tiny_glimmer(folder: Path, template: str = TEMPLATE) -> Path:
    folder.mkdir(parents=True)
    tokenizer = _tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    end = tokenizer.token_to_id("<|end_of_text|>")
    config: dict[str, Any] = {
        "model_type": "muse_glimmer",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "sliding_window": 32,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 4096,
        "eos_token_id": [end, tokenizer.token_to_id("<|eot|>")],
    }
    names = {
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|end_of_text|>",
        "chat_template": template,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    write_float32(folder / "model.safetensors", {}, [])
    return folder


def _tokenizer() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={each: place for place, each in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in MARKERS])
    return tokenizer
