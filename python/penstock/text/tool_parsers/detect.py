"""Detects the tool and reasoning syntax of a model from its chat template, else from its control
tokens."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from penstock.text.tool_parsers.syntax import AnswerSyntax, Harmony, ReasoningSyntax, ToolSyntax
from penstock.text.tool_parsers.tool_syntaxes import HERMES, REASONING_SYNTAXES, TOOL_SYNTAXES

# (syntax, texts): the first entry whose texts are all present decides.
_SIGNS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("minimax_m2", ("<minimax:tool_call>",)),
    ("kimi", ("<|tool_calls_section_begin|>",)),
    ("deepseek_v32", ("｜DSML｜",)),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("cohere", ("<|START_ACTION|>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("gemma4", ("<|tool_call>",)),
    ("gemma3", ("```tool_code",)),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral_json", ("[TOOL_CALLS]",)),
    ("seed_oss", ("<seed:tool_call>",)),
    ("glm", ("<arg_key>",)),
    ("glm4", ("[gMASK]", "<|observation|>")),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("granite", ("<|tool_call|>", "<|start_of_role|>")),
    ("phi", ("<|tool_call|>",)),
    ("phi", ("functools[",)),
    ("phi", ("<|tool|>", "<|/tool|>")),
    ("hermes", ("<tool_call>",)),
    ("hunyuan", ("<tool_calls>[",)),
    ("minimax_m1", ("<tool_calls>",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("olmo", ("<function_calls>",)),
    ("pythonic", ("<|python_start|>",)),
    ("llama3", ("<|python_tag|>",)),
    ("llama3", ("<|start_header_id|>", "parameters")),
)


# (texts, tags): the tags around the answer of a template that has all the texts.
_ANSWER_TAGS: Final = (
    (("<answer>", "</answer>"), ("<answer>", "</answer>")),
    (("<response></response>",), ("<response>", "</response>")),  # others wrap tool results so
)


def detect_answer_syntax(
    template: str | None, tokens: Collection[str], named: str | None = None
) -> AnswerSyntax:
    """Return the tool and reasoning syntax of a model with this chat template and these added
    tokens.

    `named`: the tool syntax that the operator set: a key of TOOL_SYNTAXES or "none". None: the tool
    syntax is detected.
    """
    return AnswerSyntax(_calls(template, tokens, named), _reasoning(template, tokens))


def _calls(
    template: str | None, tokens: Collection[str], named: str | None
) -> ToolSyntax | Harmony | None:
    if named == "none":
        return None
    if named is not None:
        return TOOL_SYNTAXES[named]
    if template is not None:
        for name, signs in _SIGNS:
            if all(sign in template for sign in signs):
                return TOOL_SYNTAXES[name]
    for name, signs in _SIGNS:
        if all(sign in tokens for sign in signs):
            return TOOL_SYNTAXES[name]
    return HERMES


def _reasoning(template: str | None, tokens: Collection[str]) -> ReasoningSyntax | None:
    for tags in REASONING_SYNTAXES:
        if template is not None and (tags.open in template or tags.close in template):
            return replace(tags, answer=_answer_tags(template))
    for tags in REASONING_SYNTAXES:
        if tags.close in tokens:
            return tags
    return None


def _answer_tags(template: str) -> tuple[str, str] | None:
    for signs, tags in _ANSWER_TAGS:
        if all(sign in template for sign in signs):
            return tags
    return None
