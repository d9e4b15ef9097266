"""Complete model folders of a few kilobytes: Gemma 3's and 4's architecture and markers, and no
weights in them (`random_weights` writes some).

Their tokenizer is built as Gemma's is, with one token for each byte. Their templates are short
ones of our own that write what Gemma's write.
"""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from models.safetensors_file import write_float32

GEMMA3_MARKERS = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
GEMMA3_TEMPLATE = (
    "{{ bos_token }}{% set ns = namespace(first='') %}"
    "{% if messages[0].role == 'system' %}{% set ns.first = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}"
    "{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{{ '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}"
    "{% if loop.first %}{{ ns.first }}{% endif %}{{ message.content | trim }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)

GEMMA4_MARKERS = (
    "<pad>",
    "<eos>",
    "<bos>",
    "<unk>",
    "<|tool>",
    "<tool|>",
    "<|tool_call>",
    "<tool_call|>",
    "<|tool_response>",
    "<tool_response|>",
    '<|"|>',
    "<|think|>",
    "<|channel>",
    "<channel|>",
    "<|turn>",
    "<turn|>",
)
GEMMA4_TEMPLATE = """
{%- macro value(it) -%}
    {%- if it is none -%}null
    {%- elif it is string -%}{{ '<|"|>' + it + '<|"|>' }}
    {%- elif it is boolean -%}{{ 'true' if it else 'false' }}
    {%- elif it is mapping -%}{{ '{' }}{{ fields(it) }}{{ '}' }}
    {%- elif it is sequence -%}
        [{%- for each in it -%}{{ value(each) }}{{ ',' if not loop.last }}{%- endfor -%}]
    {%- else -%}{{ it }}
    {%- endif -%}
{%- endmacro -%}
{%- macro fields(it) -%}
    {%- for key, each in it | dictsort -%}
        {{ key }}:{{ value(each) }}{{ ',' if not loop.last }}
    {%- endfor -%}
{%- endmacro -%}
{%- macro declaration(tool) -%}
    declaration:{{ tool.name }}{description:{{ value(tool.description) }},parameters:{properties:{
    {%- for key, each in (tool.parameters.properties or {}) | dictsort -%}
        {{ key }}:{description:{{ value(each.description or '') }},type:
        {{- value((each.type or '') | upper) }}}{{ ',' if not loop.last }}
    {%- endfor -%}
    },required:{{ value(tool.parameters.required or []) }},type:{{ value('OBJECT') }}}}
{%- endmacro -%}
{{- bos_token -}}
{%- set system = messages[0].role == 'system' -%}
{%- if enable_thinking or tools or system -%}
    {{- '<|turn>system\n' -}}
    {%- if enable_thinking -%}{{- '<|think|>\n' -}}{%- endif -%}
    {%- if system -%}{{- messages[0].content | trim -}}{%- endif -%}
    {%- for tool in tools or [] -%}
        {{- '<|tool>' + declaration(tool.function) + '<tool|>' -}}
    {%- endfor -%}
    {{- '<turn|>\n' -}}
{%- endif -%}
{%- set ns = namespace(last='', user=-1) -%}
{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.user = loop.index0 -%}
{%- endif -%}{%- endfor -%}
{%- for m in messages -%}
    {%- if not (system and loop.first) -%}
    {%- if m.role == 'tool' -%}
        {{- '<|tool_response>response:' + m.name + '{value:' + value(m.content) -}}
        {{- '}<tool_response|>' -}}
        {%- set ns.last = 'response' -%}
    {%- else -%}
        {%- set role = 'model' if m.role == 'assistant' else m.role -%}
        {%- if ns.last == 'response' and role != 'model' -%}{{- '<turn|>\n' -}}{%- endif -%}
        {%- if not (ns.last == 'response' and role == 'model') -%}
            {{- '<|turn>' + role + '\n' -}}
        {%- endif -%}
        {%- if m.reasoning_content and loop.index0 > ns.user -%}
            {{- '<|channel>thought\n' + m.reasoning_content + '\n<channel|>' -}}
        {%- endif -%}
        {%- for call in m.tool_calls or [] -%}
            {{- '<|tool_call>call:' + call.function.name + '{' -}}
            {{- fields(call.function.arguments) + '}<tool_call|>' -}}
        {%- endfor -%}
        {{- m.content | trim -}}
        {%- if not m.tool_calls -%}{{- '<turn|>\n' -}}{%- endif -%}
        {%- set ns.last = 'call' if m.tool_calls else '' -%}
    {%- endif -%}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {%- if ns.last == 'response' -%}
        {%- if enable_thinking -%}{{- '<|channel>thought\n' -}}{%- endif -%}
    {%- else -%}
        {{- '<|turn>model\n' -}}
        {%- if not enable_thinking -%}{{- '<|channel>thought\n<channel|>' -}}{%- endif -%}
    {%- endif -%}
{%- endif -%}
"""


_SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "sliding_window": 32,
    "sliding_window_pattern": 2,
}


def write_tiny_gemma3(folder: Path, template: str | None = GEMMA3_TEMPLATE) -> Path:
    return _write(folder, {"model_type": "gemma3_text", **_SIZES}, GEMMA3_MARKERS, template)


def write_tiny_gemma4(folder: Path, template: str | None = GEMMA4_TEMPLATE) -> Path:
    text = {
        "model_type": "gemma4_text",
        **_SIZES,
        "global_head_dim": 16,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
        "vocab_size_per_layer_input": 512,
        "vocab_size": 512,
        "max_position_embeddings": 4096,
    }
    return _write(folder, {"model_type": "gemma4", "text_config": text}, GEMMA4_MARKERS, template)


def _write(
    folder: Path, config: dict[str, Any], markers: tuple[str, ...], template: str | None
) -> Path:
    folder.mkdir(parents=True)
    tokenizer = _tokenizer(markers)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        **config,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 4096,
        "eos_token_id": 1,
    }
    names: dict[str, Any] = {"bos_token": "<bos>", "eos_token": "<eos>"}
    if template is not None:
        names["chat_template"] = template
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    write_float32(folder / "model.safetensors", {}, [])
    return folder


def _tokenizer(markers: tuple[str, ...]) -> Tokenizer:
    pieces = (*markers, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "e", "to", "t", "o")
    tokenizer = Tokenizer(
        models.BPE(
            vocab={each: place for place, each in enumerate(pieces)},
            merges=[("t", "o")],
            byte_fallback=True,
            unk_token="<unk>",
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(each, special=True) for each in markers])
    return tokenizer
