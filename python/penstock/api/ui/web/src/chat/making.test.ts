import { expect, it } from "vitest";

import type { ModelInfo } from "../api/types";
import { answerKind, sizeOf, SIZES } from "./making";

const model = (...modalities_out: string[]) => ({ modalities_out }) as unknown as ModelInfo;

it("asks each model for its kind of answer", () => {
  expect(answerKind(model("speech"))).toBe("speech");
  expect(answerKind(model("image"))).toBe("image");
  expect(answerKind(model("text"))).toBe("text");
  expect(answerKind(model())).toBe("text");
  expect(answerKind(undefined)).toBe("text");
});

it("reads sizes", () => {
  expect(sizeOf("512x768")).toEqual({ width: 512, height: 768 });
  expect(sizeOf("large")).toEqual({});
  expect(sizeOf(undefined)).toEqual({});
  expect(SIZES.every((size) => sizeOf(size).width !== undefined)).toBe(true);
});
