"""The tool call and reasoning syntaxes of all known model families."""

from __future__ import annotations

from string import ascii_letters
from typing import Final

from penstock.text.tool_parsers.formats.alternative_calls import AlternativeCalls
from penstock.text.tool_parsers.formats.json_calls import JsonCalls
from penstock.text.tool_parsers.formats.named_calls import NamedCalls
from penstock.text.tool_parsers.formats.python_calls import PythonCalls
from penstock.text.tool_parsers.formats.relaxed_calls import RelaxedCalls
from penstock.text.tool_parsers.formats.tagged_calls import TaggedCalls
from penstock.text.tool_parsers.syntax import Harmony, ReasoningSyntax, Section, ToolSyntax

_FUNCTION_TAGS: Final = TaggedCalls(
    call_open="<function=",
    name_ends=(">",),
    call_close="</function>",
    key_open="<parameter=",
    key_close=">",
    value_close="</parameter>",
    value_lines=True,
)
_DSML: Final = "｜DSML｜"

HERMES: Final = ToolSyntax(
    "hermes",
    (
        Section("<tool_call>", "</tool_call>", space="\n"),
        Section("<tools>", "</tools>"),
        Section("<function_call>", "</function_call>"),
        # Models that were trained more on code than on tool calls write this section.
        Section("```json", "```", space="\n", may_be_forced=True),
    ),
    JsonCalls(),
    bare="{[",
    section_per_call=True,
    section_separator="\n",
)
HARMONY: Final = Harmony()

_LISTED: Final = (
    HERMES,
    ToolSyntax(
        "qwen3_coder",
        (
            Section("<tool_call>", "</tool_call>", space="\n"),
            Section("<function=", "</tool_call>", in_call=True),
        ),
        _FUNCTION_TAGS,
        section_per_call=True,
        section_separator="\n",
    ),
    ToolSyntax(
        "seed_oss",
        (Section("<seed:tool_call>", "</seed:tool_call>", space="\n"),),
        _FUNCTION_TAGS,
        section_per_call=True,
        section_separator="\n",
    ),
    ToolSyntax(
        "llama3",
        (Section("<|python_tag|>"), Section("<function=", in_call=True)),
        AlternativeCalls(
            JsonCalls("parameters"),
            (
                ("<", NamedCalls((">",), begin="<function=", end="</function>")),
                ("[", PythonCalls()),
                *((letter, PythonCalls(in_list=False)) for letter in "abcdefghijklmnopqrstuvwxyz_"),
            ),
        ),
        bare="{[",
        written_section=Section(""),
    ),
    ToolSyntax(
        "mistral",
        (Section("[TOOL_CALLS]"),),
        AlternativeCalls(
            NamedCalls(("[ARGS]",), id_mark="[CALL_ID]"),
            (("[", JsonCalls(array=True)), ("{", JsonCalls())),
        ),
        section_per_call=True,
    ),
    ToolSyntax(
        "mistral_json",
        (Section("[TOOL_CALLS]"),),
        AlternativeCalls(
            JsonCalls(array=True),
            tuple((c, NamedCalls(("[ARGS]",))) for c in "abcdefghijklmnopqrstuvwxyz_"),
        ),
    ),
    ToolSyntax(
        "deepseek_v3",
        (
            Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            Section("<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>", in_call=True),
        ),
        NamedCalls(
            ("\n", "<｜tool▁sep｜>"),
            begin="<｜tool▁call▁begin｜>",
            kind="function<｜tool▁sep｜>",
            code_fence=True,
            end="<｜tool▁call▁end｜>",
        ),
    ),
    ToolSyntax(
        "deepseek_v31",
        (
            Section("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"),
            Section("<｜tool▁call▁begin｜>", "<｜tool▁calls▁end｜>", in_call=True),
        ),
        NamedCalls(("<｜tool▁sep｜>",), begin="<｜tool▁call▁begin｜>", end="<｜tool▁call▁end｜>"),
    ),
    ToolSyntax(
        "deepseek_v32",
        (Section(f"<{_DSML}function_calls>", f"</{_DSML}function_calls>", space="\n"),),
        TaggedCalls(
            call_open=f'<{_DSML}invoke name="',
            name_ends=('">',),
            call_close=f"</{_DSML}invoke>",
            key_open=f'<{_DSML}parameter name="',
            key_close='"',
            value_close=f"</{_DSML}parameter>",
            string_attribute=True,
        ),
    ),
    ToolSyntax(
        "functiongemma",
        (Section("<start_function_call>", "<end_function_call>"),),
        RelaxedCalls("<escape>"),
        section_per_call=True,
    ),
    ToolSyntax(
        "gemma4",
        (Section("<|tool_call>", "<tool_call|>"),),
        RelaxedCalls('<|"|>'),
        section_per_call=True,
    ),
    ToolSyntax(
        "gemma3",
        (Section("```tool_code", "```", space="\n"), Section("```tool_call", "```")),
        PythonCalls(in_list=False),
    ),
    ToolSyntax(
        "glm",
        (Section("<tool_call>", "</tool_call>"),),
        TaggedCalls(
            call_open="",
            name_ends=("\n", "<arg_key>", "</tool_call>"),
            kept_ends=("<arg_key>", "</tool_call>"),
            call_close="",
            key_open="<arg_key>",
            key_close="</arg_key>",
            value_open="<arg_value>",
            value_close="</arg_value>",
        ),
        section_per_call=True,
        section_separator="\n",
    ),
    # GLM-4 writes the name and, on the next line, the arguments, without any mark.
    ToolSyntax(
        "glm4",
        (),
        NamedCalls(("\n",), between="\n"),
        bare=f"{ascii_letters}_",
        bare_end=r"[ \t]*\n",
        written_section=Section(""),
    ),
    ToolSyntax(
        "phi",
        (Section("<|tool_call|>", "<|/tool_call|>"), Section("functools")),
        JsonCalls(array=True),
        bare="[{",
    ),
    ToolSyntax(
        "granite",
        (Section("<|tool_call|>"), Section("<tool_call>", "</tool_call>")),
        JsonCalls(array=True),
    ),
    ToolSyntax(
        "lfm2",
        (Section("<|tool_call_start|>", "<|tool_call_end|>"),),
        AlternativeCalls(PythonCalls(), (("{", JsonCalls()), ("[{", JsonCalls(array=True)))),
    ),
    ToolSyntax(
        "kimi",
        (
            Section("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
            Section("<|tool_call_begin|>", "<|tool_calls_section_end|>", in_call=True),
        ),
        NamedCalls(
            ("<|tool_call_argument_begin|>",),
            begin="<|tool_call_begin|>",
            end="<|tool_call_end|>",
            id_pattern=r"(?:functions\.)?(?P<name>.+?):\d+",
            id_format="functions.{name}:{index}",
        ),
    ),
    ToolSyntax(
        "cohere",
        (Section("<|START_ACTION|>", "<|END_ACTION|>"),),
        JsonCalls("parameters", "tool_name", "tool_call_id", array=True, indent="\n    "),
    ),
    ToolSyntax("hunyuan", (Section("<tool_calls>", "</tool_calls>"),), JsonCalls(array=True)),
    ToolSyntax(
        "minimax_m1",
        (Section("<tool_calls>", "</tool_calls>", space="\n"),),
        JsonCalls(separator="\n"),
    ),
    ToolSyntax(
        "minimax_m2",
        (Section("<minimax:tool_call>", "</minimax:tool_call>", space="\n"),),
        TaggedCalls(
            call_open='<invoke name="',
            name_ends=('">',),
            call_close="</invoke>",
            key_open='<parameter name="',
            key_close='">',
            value_close="</parameter>",
        ),
    ),
    ToolSyntax(
        "pythonic",
        (Section("<|python_start|>", "<|python_end|>"),),
        PythonCalls(),
        bare="[",
        written_section=Section(""),
    ),
    ToolSyntax(
        "olmo",
        (Section("<function_calls>", "</function_calls>", space="\n"),),
        PythonCalls(in_list=False),
    ),
    ToolSyntax("nemotron", (Section("<TOOLCALL>", "</TOOLCALL>"),), JsonCalls(array=True)),
)

TOOL_SYNTAXES: Final[dict[str, ToolSyntax | Harmony]] = {s.name: s for s in _LISTED} | {
    HARMONY.name: HARMONY
}

REASONING_SYNTAXES: Final = (
    ReasoningSyntax("<think>", "</think>"),
    ReasoningSyntax("[THINK]", "[/THINK]"),
    ReasoningSyntax("<seed:think>", "</seed:think>"),
    ReasoningSyntax("<|channel>thought", "<channel|>"),
    ReasoningSyntax("◁think▷", "◁/think▷"),
    ReasoningSyntax("<|START_THINKING|>", "<|END_THINKING|>"),
)
"""The tags around reasoning. A model uses the first pair that its template or vocabulary
contains."""
