"""Built-in chat templates for models whose files have no usable template.

The template is chosen by the model's control tokens, else by its name. These templates support a
plain conversation; tools, calls and results use fallbacks (`message_fallbacks`).
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

_CHATML: Final = """
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}
"""
_LLAMA3: Final = """
{{- bos_token }}
{%- for m in messages %}
{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
_LLAMA2: Final = """
{%- set ns = namespace(system='') %}
{%- for m in messages %}
{%- if m.role == 'system' %}
{%- set ns.system = '<<SYS>>\\n' + m.content + '\\n<</SYS>>\\n\\n' %}
{%- elif m.role == 'user' %}
{{- bos_token + '[INST] ' + ns.system + m.content | trim + ' [/INST]' }}
{%- set ns.system = '' %}
{%- else %}
{{- ' ' + m.content | trim + ' ' + eos_token }}
{%- endif %}
{%- endfor %}
"""
_MISTRAL: Final = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('system messages are not shown') }}
{%- elif m.role == 'user' %}{{- '[INST] ' + m.content + ' [/INST]' }}
{%- else %}{{- ' ' + m.content | trim + eos_token }}
{%- endif %}
{%- endfor %}
"""
_GEMMA: Final = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- raise_exception('system messages are not shown') }}{% endif %}
{%- set role = 'model' if m.role == 'assistant' else m.role %}
{{- '<start_of_turn>' + role + '\\n' + m.content | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{% endif %}
"""
_PHI3: Final = """
{%- for m in messages %}
{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}
"""
_PHI4: Final = """
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant<|im_sep|>' }}{% endif %}
"""
_ZEPHYR: Final = """
{%- for m in messages %}
{{- '<|' + m.role + '|>\\n' + m.content + eos_token + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{% endif %}
"""
_GRANITE: Final = """
{%- for m in messages %}
{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}
"""
_DEEPSEEK: Final = """
{{- bos_token }}
{%- for m in messages %}
{%- if m.role == 'system' %}{{- m.content }}
{%- elif m.role == 'user' %}{{- '<｜User｜>' + m.content }}
{%- else %}{{- '<｜Assistant｜>' + m.content + '<｜end▁of▁sentence｜>' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<｜Assistant｜>' }}{% endif %}
"""

# The first entry whose tokens are all in the vocabulary decides.
_BY_TOKENS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (_PHI4, ("<|im_start|>", "<|im_sep|>")),
    (_CHATML, ("<|im_start|>", "<|im_end|>")),
    (_LLAMA3, ("<|start_header_id|>", "<|end_header_id|>")),
    (_GEMMA, ("<start_of_turn>", "<end_of_turn>")),
    (_GRANITE, ("<|start_of_role|>", "<|end_of_role|>")),
    (_DEEPSEEK, ("<｜User｜>", "<｜Assistant｜>")),
    (_PHI3, ("<|user|>", "<|assistant|>", "<|end|>")),
    (_MISTRAL, ("[INST]", "[/INST]")),
    (_ZEPHYR, ("<|user|>", "<|assistant|>")),
)
# For families that mark turns with plain text: all words must be in the model's name.
_BY_NAME: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (_LLAMA2, ("llama-2", "chat")),
    (_LLAMA2, ("llama2", "chat")),
    (_MISTRAL, ("mistral", "instruct")),
    (_MISTRAL, ("mixtral", "instruct")),
    (_ZEPHYR, ("zephyr",)),
    (_ZEPHYR, ("tinyllama", "chat")),
)


def known_template(tokens: Collection[str], name: str) -> str | None:
    """Return the Jinja source of a built-in template for a model with these added tokens and this
    name, or None if no template is known."""
    for source, signs in _BY_TOKENS:
        if all(sign in tokens for sign in signs):
            return source.strip()
    lowered = name.lower()
    for source, words in _BY_NAME:
        if all(word in lowered for word in words):
            return source.strip()
    return None
