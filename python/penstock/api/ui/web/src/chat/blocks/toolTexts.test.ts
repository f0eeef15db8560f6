import { describe, expect, it } from "vitest";

import type { ToolBlock } from "../../api/types";
import { callOf, hitsOf, outputsOf, shownArguments, summaryOf } from "./toolTexts";

function block(tool: string, changes: Partial<ToolBlock> = {}): ToolBlock {
  return {
    type: "tool",
    call_id: "c",
    tool,
    name: "service",
    label: "A tool",
    arguments: "{}",
    state: "done",
    result: {},
    output: "",
    images: [],
    ...changes,
  };
}

const hits = (output: unknown) =>
  hitsOf(block("web_search", { output: JSON.stringify({ output }) }));

describe("the heading of a call", () => {
  it("names the first line of code before and after the call", () => {
    const code = "x = 1\nprint(x)";
    expect(summaryOf(block("code_execution", { arguments: JSON.stringify({ code }) }))).toEqual({
      icon: "code",
      title: "Python: x = 1",
      note: undefined,
    });
    expect(summaryOf(block("code_execution", { result: { code, execution_time_ms: 40 } }))).toEqual(
      { icon: "code", title: "Python: x = 1", note: "40 ms" },
    );
  });
  it("tells how a command ended", () => {
    const commands = ["ls /none"];
    expect(summaryOf(block("shell", { result: { commands, exit_code: 2 } }))).toMatchObject({
      title: "ls /none",
      failure: "exit 2",
    });
    expect(summaryOf(block("shell", { result: { commands, timed_out: true } })).failure).toBe(
      "timed out",
    );
  });
  it("names the search, and other tools by their labels", () => {
    const searched = block("web_search", {
      arguments: '{"query": "rivers"}',
      result: { results_count: 1 },
    });
    expect(summaryOf(searched)).toMatchObject({ title: "Searched: rivers", note: "1 result" });
    expect(summaryOf(block("custom")).title).toBe("A tool");
  });
});

describe("search results", () => {
  it("are links to the web only", () => {
    const good = { title: "A", url: "https://a.example/x", description: "d" };
    expect(
      hits([good, { ...good, url: "javascript:alert(1)" }, { url: "data:x" }, 1, null]),
    ).toEqual([good]);
    expect(hits([{ url: "http://" }])).toEqual([]);
  });
  it("have their address as title if they have none", () => {
    expect(hits([{ url: "https://a.example/" }])[0]?.title).toBe("https://a.example/");
  });
  it("are shown as text if the output has another shape", () => {
    const other = block("web_search", { output: "no network" });
    expect(hitsOf(other)).toEqual([]);
    expect(outputsOf(other)).toEqual([{ name: "Result", text: "no network" }]);
  });
});

it("shows outputs by name and leaves empty ones out", () => {
  const result = { stdout: "a", stderr: "", exception: "E" };
  expect(outputsOf(block("code_execution", { result }))).toEqual([
    { name: "Output", text: "a" },
    { name: "Exception", text: "E" },
  ]);
});

it("indents arguments and keeps what is no JSON", () => {
  expect(shownArguments({ arguments: '{"a":1}' })).toBe('{\n  "a": 1\n}');
  expect(shownArguments({ arguments: "{broken" })).toBe("{broken");
});

it("shows code and commands before they run as they are, and other calls as JSON", () => {
  expect(callOf("code_execution", '{"code": "a\\nb"}')).toEqual({
    code: "a\nb",
    language: "python",
  });
  expect(callOf("shell", '{"commands": ["a", "b"]}')).toEqual({ code: "a\nb", language: "bash" });
  expect(callOf("custom", '{"code":1}').language).toBe("json");
  expect(callOf("shell", '{"commands":[]}').language).toBe("json");
});
