"""The package runs no code from data: no pickles, no code of models, no shell."""

from __future__ import annotations

import ast

import pytest
from test_layers import ROOT, sources

# Functions that run data as code or build arbitrary objects: published holes of other servers.
UNSAFE = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "jsonpickle", "shelve"),
    *("marshal", "multiprocessing", "yaml", "code", "codeop"),
    *("torch.load", "torch.hub", "torch.jit.load", "torch.package", "torch.export.load"),
    *("numpy.load", "numpy.lib.format", "numpy.memmap"),
    *("os.system", "os.popen", "eval", "exec"),
    *("jinja2.Environment", "jinja2.Template", "jinja2.sandbox.SandboxedEnvironment"),
}
RUNS_TEXT = {"eval", "exec"}
UNSAFE_METHODS = {"recv_pyobj", "send_pyobj"}
UNSAFE_OPTIONS = {"trust_remote_code", "allow_pickle"}
ALLOWED = {
    # Tools of a distribution's maker, whose processes talk to themselves.
    "penstock.kernels.triton.compile.ahead_of_time": {"multiprocessing.get_context"},
    "penstock.kernels.triton.compile.package": {"multiprocessing.get_context"},
    # A type: what makes one is the sandbox.
    "penstock.text.chat_templates.chat_template": {"jinja2.Template"},
    # The Python tool: runs the model's code inside the sandbox. `facts` compiles this folder.
    "penstock.sandbox.runner.interpreter": {"eval"},
    "penstock.sandbox.runner.pictures": {"exec", "marshal.loads"},
    "penstock.sandbox.runner.facts": {"marshal", "marshal.dumps", "marshal.dumps(code).hex"},
}


def unsafe_uses(source: str) -> list[tuple[int, str]]:
    """(line, what) of everything that may run code out of data, whichever way its name came into
    the file."""
    tree, names, found = ast.parse(source), {name: name for name in RUNS_TEXT}, []
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                tops = [a.name.partition(".")[0] for a in aliases if not a.asname]
                names.update(zip(tops, tops, strict=True))
                names.update({a.asname: a.name for a in aliases if a.asname})
                found += [(node.lineno, a.name) for a in aliases if is_unsafe(a.name)]
            case ast.ImportFrom(module=str(module), names=aliases):
                names.update({a.asname or a.name: f"{module}.{a.name}" for a in aliases})
                whole = [f"{module}.{a.name}" for a in aliases]
                found += [(node.lineno, name) for name in whole if is_unsafe(name)]
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name) if name in UNSAFE_METHODS:
                found.append((node.lineno, name))
            case ast.Attribute() | ast.Name():
                first, dot, rest = dotted(node).partition(".")
                whole = names.get(first, "") + dot + rest
                if is_unsafe(whole):
                    found.append((node.lineno, whole))
            case ast.keyword(arg=str(name)) if name in UNSAFE_OPTIONS:
                found.append((node.value.lineno, name))
            case ast.Constant(value=str(name)) if name in UNSAFE_OPTIONS:
                found.append((node.lineno, name))
            case ast.keyword(arg="shell", value=ast.Constant(value=True)):
                found.append((node.value.lineno, "shell=True"))
    return found


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` of names joined by dots; of other expressions the part after the last call or
    index, with a dot before it."""
    attributes = ""
    while isinstance(node, ast.Attribute):
        attributes = f".{node.attr}{attributes}"
        node = node.value
    return node.id + attributes if isinstance(node, ast.Name) else attributes


def is_unsafe(name: str) -> bool:
    """Whether a dotted name is one of UNSAFE, or lies within one."""
    parts = name.split(".")
    return any(".".join(parts[:count]) in UNSAFE for count in range(1, len(parts) + 1))


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "import multiprocessing.connection as c",
        "from dill import loads",
        "from os import system as run",
        "import torch\ntorch.load('x')",
        "import torch as t\nt.load('x')",
        "from torch import load as read\nread('x')",
        "from torch import hub",
        "import numpy as np\nnp.load('x')",
        "np.load('x', allow_pickle=True)",
        "model(trust_remote_code=False)",
        "model(**{'trust_remote_code': True})",
        "socket.recv_pyobj()",
        "eval('1')",
        "exec('1')",
        "run('ls', shell=True)",
        "import jinja2\njinja2.Environment()",
        "from jinja2 import Template",
    ],
)
def test_an_unsafe_use_is_seen(source: str) -> None:
    assert source.count("\n") + 1 in [line for line, _ in unsafe_uses(source)]


@pytest.mark.parametrize(
    "source",
    [
        "import json\njson.load(file)",
        "from msgspec import msgpack\nmsgpack.decode(b'')",
        "import torch\ntorch.loads",
        "error.code",
        "run(['ls'], shell=False)",
        "from jinja2.sandbox import ImmutableSandboxedEnvironment",
    ],
)
def test_a_safe_use_is_let_pass(source: str) -> None:
    assert unsafe_uses(source) == []


def test_nothing_runs_code_out_of_data() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {what}"
        for module, path in sources()
        for line, what in unsafe_uses(path.read_text())
        if what not in ALLOWED.get(module, ())
    ]
    assert not wrong, "\n".join(wrong)
