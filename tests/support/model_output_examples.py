"""Example outputs of each model family, for the tests of tool parsers."""

from __future__ import annotations

from penstock.dialog import FunctionTool

WEATHER = FunctionTool(
    "get_weather",
    "Weather of a place",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "options": {"type": "object"},
            "metric": {"type": "boolean"},
        },
        "required": ["city"],
    },
)
PING = FunctionTool("ping")
HYPOT = FunctionTool(
    "math.hypot",
    None,
    {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}},
)
TOOLS = (WEATHER, PING, HYPOT)

PARIS = ("get_weather", {"city": "Paris", "days": 3})
PLAIN_PING: tuple[str, dict[str, object]] = ("ping", {})

# Per syntax: (text that the model writes, the calls in it).
EXAMPLES: dict[str, list[tuple[str, list[tuple[str, dict[str, object]]]]]] = {
    "hermes": [
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
            '</tool_call>\n<tool_call>\n{"name": "ping", "arguments": {}}\n</tool_call>',
            [PARIS, PLAIN_PING],
        ),
        (
            '{{"name": "get_weather", "arguments": {"city": "\\"}é", "days": 3}}}',
            [("get_weather", {"city": '"}é', "days": 3})],
        ),
        (
            '```json\n{"arguments": {"city": "Paris", "days": 3}, "name": "get_weather"}\n```',
            [PARIS],
        ),
        (
            '[{"type": "function", "function": {"name": "ping", "arguments": "{}"}},'
            ' {"name": "ping"}]',
            [PLAIN_PING, PLAIN_PING],
        ),
        (
            '<tool_call>{"name": "get_weather", "arguments": {"city": "a\nb"}\n</tool_call>',
            [("get_weather", {"city": "a\nb"})],
        ),
    ],
    "qwen3_coder": [
        (
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            [PARIS],
        ),
        (
            "<function=get_weather>\n<parameter=city>\n<b>\n\n</parameter>\n<parameter=options>\n"
            "{'a': [1, None]}\n</parameter>\n<parameter=metric>\nTrue\n</parameter>\n</function>\n"
            "</tool_call>\n<tool_call>\n<function=ping>\n</function>\n</tool_call>",
            [
                ("get_weather", {"city": "<b>\n", "options": {"a": [1, None]}, "metric": True}),
                PLAIN_PING,
            ],
        ),
    ],
    "seed_oss": [
        (
            "<seed:tool_call><function=get_weather><parameter=city>Paris</parameter>"
            "<parameter=days>3</parameter></function></seed:tool_call>",
            [PARIS],
        )
    ],
    "llama3": [
        (
            '{"name": "get_weather", "parameters": {"city": "Paris", "days": 3}}; '
            '{"name": "ping", "parameters": {}}',
            [PARIS, PLAIN_PING],
        ),
        ('<|python_tag|>get_weather.call(city="Paris", days=3)', [PARIS]),
        ('<function=get_weather>{"city": "Paris", "days": 3}</function>', [PARIS]),
        ('[get_weather(city="Paris", days=3), ping()]', [PARIS, PLAIN_PING]),
    ],
    "mistral": [
        (
            '[TOOL_CALLS]get_weather[ARGS]{"city": "Paris", "days": 3}'
            "[TOOL_CALLS]ping[CALL_ID]abcdefghi[ARGS]{}",
            [PARIS, PLAIN_PING],
        ),
        ("[TOOL_CALLS]ping{}", [PLAIN_PING]),
    ],
    "mistral_json": [
        (
            '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Paris", "days": 3},'
            ' "id": "abcdefghi"}, {"name": "ping", "arguments": {}}]',
            [PARIS, PLAIN_PING],
        )
    ],
    "deepseek_v3": [
        (
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
            '{"city": "Paris", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
            "<｜tool▁sep｜>ping\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
            [PARIS, PLAIN_PING],
        )
    ],
    "deepseek_v31": [
        (
            '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris",'
            ' "days": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
            [PARIS],
        )
    ],
    "deepseek_v32": [
        (
            '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter'
            ' name="city" string="true">Paris</｜DSML｜parameter>\n<｜DSML｜parameter name="days"'
            ' string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
            '<｜DSML｜invoke name="ping">\n'
            "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
            [PARIS, PLAIN_PING],
        )
    ],
    "functiongemma": [
        (
            "<start_function_call>call:get_weather{city:<escape>Paris<escape>,days:3}"
            "<end_function_call><start_function_call>call:ping{}<end_function_call>",
            [PARIS, PLAIN_PING],
        )
    ],
    "gemma4": [
        (
            '<|tool_call>call:get_weather{city:<|"|>Pa\nris<|"|>,options:{a:[1,true,<|"|>x<|"|>],'
            "b:{}}}<tool_call|>",
            [("get_weather", {"city": "Pa\nris", "options": {"a": [1, True, "x"], "b": {}}})],
        )
    ],
    "gemma3": [
        ("```tool_code\nget_weather(city='Paris', days=3)\n```", [PARIS]),
        ("```tool_code\nping()\nping()\n```", [PLAIN_PING, PLAIN_PING]),
    ],
    "glm": [
        (
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
            "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
            "<tool_call>ping</tool_call>",
            [PARIS, PLAIN_PING],
        ),
        (
            "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
            "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
            [PARIS],
        ),
    ],
    "glm4": [
        ('get_weather\n{"city": "Paris", "days": 3}', [PARIS]),
        ('\nping\n{}\nget_weather \n{"city": "Paris", "days": 3}', [PLAIN_PING, PARIS]),
    ],
    "phi": [
        (
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]'
            "<|/tool_call|>",
            [PARIS],
        ),
        ('functools[{"name": "ping", "arguments": {}}]', [PLAIN_PING]),
    ],
    "granite": [
        (
            '<|tool_call|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}},'
            ' {"name": "ping", "arguments": {}}]',
            [PARIS, PLAIN_PING],
        )
    ],
    "lfm2": [
        (
            '<|tool_call_start|>[get_weather(city="Paris", days=3), ping()]<|tool_call_end|>',
            [PARIS, PLAIN_PING],
        ),
        (
            '<|tool_call_start|>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}'
            "}]<|tool_call_end|>",
            [PARIS],
        ),
        (
            "<|tool_call_start|>[math.hypot(x=-1.5, y=2e3)]<|tool_call_end|>",
            [("math.hypot", {"x": -1.5, "y": 2000.0})],
        ),
    ],
    "kimi": [
        (
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
            '<|tool_call_argument_begin|>{"city": "Paris", "days": 3}<|tool_call_end|>'
            "<|tool_call_begin|>functions.ping:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
            "<|tool_calls_section_end|>",
            [PARIS, PLAIN_PING],
        )
    ],
    "cohere": [
        (
            '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "get_weather",'
            ' "parameters": {"city": "Paris", "days": 3}},\n    {"tool_call_id": "1",'
            ' "tool_name": "ping", "parameters": {}}\n]<|END_ACTION|>',
            [PARIS, PLAIN_PING],
        )
    ],
    "hunyuan": [
        (
            '<tool_calls>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}},'
            ' {"name": "ping", "arguments": {}}]</tool_calls>',
            [PARIS, PLAIN_PING],
        ),
        (
            '<tool_calls>\n[\n  {"name": "ping", "arguments": {}}\n]\n</tool_calls>',
            [PLAIN_PING],
        ),
    ],
    "minimax_m1": [
        (
            '<tool_calls>\n{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}\n'
            '{"name": "ping", "arguments": {}}\n</tool_calls>',
            [PARIS, PLAIN_PING],
        )
    ],
    "minimax_m2": [
        (
            '<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Paris'
            '</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="ping">\n'
            "</invoke>\n</minimax:tool_call>",
            [PARIS, PLAIN_PING],
        )
    ],
    "pythonic": [
        (
            "[math.hypot(4, y=5), get_weather(city='it\\'s \"q\" \\u00e9\\n', options={'a': (1,"
            ' None), "b": """x""", 3: \'\'})]',
            [
                ("math.hypot", {"x": 4, "y": 5}),
                (
                    "get_weather",
                    {"city": 'it\'s "q" é\n', "options": {"a": [1, None], "b": "x", "3": ""}},
                ),
            ],
        )
    ],
    "olmo": [
        (
            '<function_calls>\nping()\nget_weather("Paris", 3)\n</function_calls>',
            [PLAIN_PING, PARIS],
        )
    ],
    "nemotron": [
        (
            '<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris", "days": 3}}]'
            "</TOOLCALL>",
            [PARIS],
        )
    ],
    "harmony": [
        (
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
            '{"city": "Paris", "days": 3}<|call|>',
            [PARIS],
        ),
        (" to=functions.ping<|channel|>commentary json<|message|>{}<|call|>", [PLAIN_PING]),
    ],
}
