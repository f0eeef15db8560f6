// @vitest-environment jsdom
import { describe, expect, it } from "vitest";

import { MarkdownParser, type MarkdownBlock, sanitize } from "./parse";

const parse = (source: string): MarkdownBlock[] => new MarkdownParser().parse(source).flat();
const html = (source: string): string =>
  parse(source)
    .map((block) => (block.kind === "html" ? block.html : `<code>${block.code}</code>`))
    .join("");

describe("hostile texts", () => {
  it.each([
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<svg onload=alert(1)>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<a href='javascript:alert(1)'>x</a>",
    "<details open ontoggle=alert(1)>",
    "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:x)",
    "![x](https://evil.example/track.png)",
    "![x](javascript:alert(1))",
    '<b style="position:fixed">x</b>',
    '<b class="skip" id="app">x</b>',
    "<style>*{display:none}</style>",
    '<form action="https://evil.example"><input name=q></form>',
    "<base href='https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "$<img src=x onerror=alert(1)>$",
    "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
    "[a]: javascript:alert(1)\n\n[a]",
    '<https://evil.example/" onmouseover="alert(1)>',
  ])("%s runs and loads nothing", (source) => {
    const page = document.createElement("div");
    page.innerHTML = html(source);
    for (const element of page.querySelectorAll("*")) {
      expect(["SCRIPT", "IFRAME", "STYLE", "SVG", "FORM", "BASE", "META", "IMG"]).not.toContain(
        element.tagName.toUpperCase(),
      );
      for (const { name, value } of element.attributes) {
        expect(name).not.toMatch(/^on|^style$|^id$/);
        expect(value).not.toMatch(/^\s*(javascript|data|vbscript):/i);
      }
    }
  });

  it("is shown as the text that was written", () => {
    const page = document.createElement("div");
    page.innerHTML = html("A Vec<T> and <script>alert(1)</script>");
    expect(page.textContent).toContain("A Vec<T> and <script>alert(1)</script>");
  });

  it("keeps only classes of its own", () => {
    expect(sanitize('<code class="language-c++">x</code>')).toContain("language-c++");
    expect(sanitize('<p class="shell">x</p>')).toBe("<p>x</p>");
  });
});

describe("Markdown", () => {
  it("opens links in a new window without a way back", () => {
    expect(html("[x](https://a.example)")).toContain(
      'target="_blank" rel="noopener noreferrer nofollow"',
    );
  });

  it("has tables, lists and line breaks in cells", () => {
    const page = document.createElement("div");
    page.innerHTML = html("| a | b |\n|---|---|\n| 1<br>2 | x |\n\n- [x] done");
    expect(page.querySelectorAll("td br")).toHaveLength(1);
    expect(page.querySelector("li")?.textContent).toContain("done");
  });

  it("finds formulas and leaves prices alone", () => {
    expect(html("so $a_1 < b$ and \\(c\\)")).toContain('<span class="math">a_1 &lt; b</span>');
    expect(html("$$\\int x\\,dx$$")).toContain('<span class="math display">');
    expect(html("\\[x\\]")).toContain('<span class="math display">x</span>');
    expect(html("it costs $5 or $6")).not.toContain("math");
  });

  it("tells code from text, and open fences from closed ones", () => {
    expect(parse("```python title=x\nprint(1)\n```")).toEqual([
      { kind: "code", code: "print(1)", language: "python", closed: true },
    ]);
    expect(parse("```\nprint(1)")).toMatchObject([{ code: "print(1)", closed: false }]);
    expect(parse("```")).toMatchObject([{ closed: false }]);
  });

  it("gives the same blocks again while a text grows", () => {
    const parser = new MarkdownParser();
    const before = parser.parse("# One\n\nTwo\n\nThr").flat();
    const after = parser.parse("# One\n\nTwo\n\nThree").flat();
    expect(after[0]).toBe(before[0]);
    expect(after[1]).toBe(before[1]);
    expect(after[2]).not.toBe(before[2]);
  });

  it("ends with the same blocks, however the text was cut", () => {
    const source =
      "# A\n\npara\nmore\n\n- one\n- two\n\n  deep\n\n```js\nx\n\ny\n```\n\n| a |\n|---|\n| b |\n\nend";
    const parser = new MarkdownParser();
    for (let end = 0; end < source.length; end += 3) parser.parse(source.slice(0, end));
    expect(parser.parse(source).flat()).toEqual(parse(source));
  });

  it("keeps all but the end of a long answer", () => {
    const source = "Some **words** and `code` in a line.\n\n".repeat(2500);
    const parser = new MarkdownParser();
    const before = parser.parse(source);
    const after = parser.parse(`${source}more`);
    expect(after.flat()).toHaveLength(2501);
    const settled = before.slice(0, -1);
    expect(settled.length).toBeGreaterThan(60);
    expect(after.slice(0, settled.length).every((group, at) => group === settled[at])).toBe(true);
    expect(parser.parse("short").flat()).toEqual(parse("short"));
  });
});
